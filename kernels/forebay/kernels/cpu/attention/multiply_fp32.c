#define ELEMENT float
#define LOAD vf_load
#define TABLES MULTIPLY_FP32
#include "multiply.h"
