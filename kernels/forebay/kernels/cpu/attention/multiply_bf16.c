#define ELEMENT uint16_t
#define LOAD vf_load_bf16
#define TABLES MULTIPLY_BF16
#include "multiply.h"
