// A panel is 48 output columns of a weight matrix, stored so that a kernel reads it front to back. A kernel computes
// R rows x 3 vectors of columns of one panel, adding products in the order of k with one accumulator for each output.
// So an output's bits do not depend on R, on the other rows, or on the number of threads.
#ifndef FOREBAY_PANEL_H
#define FOREBAY_PANEL_H

#include "vec.h"
#include "ops.h"
#include "rows.h"

enum { SUB_PANEL = 3 * VL, MAX_ROWS = VL == 16 ? 8 : 4 };

struct panel {
  const uint8_t *weight;
  const uint8_t *scales, *mins;
  const float *bias;        // null without
  float *out;               // first column of the panel in row 0
  int64_t out_stride;
  int64_t k;
  const uint8_t *ahead;     // what to prefetch meanwhile: a part of the next panel
  int columns;              // live columns from the sub-panel's first on
  int accumulate;
};

// `ahead_step` bytes of the next panel are fetched for each step over k that reads `PANEL * 4` bytes.
typedef void panel_rows(const struct panel *panel, const struct activation *x, int64_t row, int ahead_step);

INLINE void prefetch_ahead(const uint8_t *ahead, int step) {
  for (int byte = 0; byte < step; byte += 64) __builtin_prefetch(ahead + byte, 0, 2);
}

// Adds bias and the old value where asked, and stores what lies inside the matrix.
INLINE void finish(const struct panel *panel, int64_t row, int column, vf value) {
  const int left = panel->columns - column;
  float *out = panel->out + row * panel->out_stride + column;
  if (left <= 0) return;
  if (panel->bias) value += vf_load(panel->bias + column);
  if (left >= VL) {
    if (panel->accumulate) value += vf_load(out);
    vf_store(out, value);
  } else {
    if (panel->accumulate) value += vf_load_first(out, left);
    vf_store_first(out, value, left);
  }
}

// Tables of kernels by number of rows; entry 0 is never used.
extern panel_rows *const FP32_ROWS[MAX_ROWS + 1], *const INT8_ROWS[MAX_ROWS + 1], *const INT4_ROWS[MAX_ROWS + 1];
extern panel_rows *const BF16_WIDEN_ROWS[MAX_ROWS + 1], *const BF16_DOT_ROWS[MAX_ROWS + 1];

#if VL == 16
#define FOR_EACH_ROW_COUNT(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#else
#define FOR_EACH_ROW_COUNT(X) X(1) X(2) X(3) X(4)
#endif
#define TABLE_ENTRY(R) [R] = rows_##R,

#endif
