#ifndef FOREBAY_ATTEND_H
#define FOREBAY_ATTEND_H

#include "kv.h"

enum { CHUNK_ROWS = 6 };

typedef void narrow_rows(const int32_t *a, int64_t a_stride, const int32_t *b, int64_t b_stride, int64_t k, float *c,
                         int64_t c_stride, int add);
typedef void wide_rows(const int32_t *a, int64_t a_stride, const int32_t *const b[4], int64_t b_stride, int64_t k,
                       float *c, int64_t c_stride, int add);

// Products for 1..6 rows at once; `wide` only with AVX-512.
struct multiply {
  narrow_rows *narrow[CHUNK_ROWS + 1];
  wide_rows *wide[CHUNK_ROWS + 1];
};
extern const struct multiply MULTIPLY_FP32, MULTIPLY_WIDEN, MULTIPLY_DOT;

#endif
