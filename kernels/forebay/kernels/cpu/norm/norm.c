// RMS norm of each row, optionally added to the residual stream, optionally quantized for the next linear layer.
#include <math.h>

#include "activation.h"

static float inverse_rms(const float *x, int64_t width, float eps) {
  vf sum = vf_set(0.0f);
  for (int64_t i = 0; i < width; i += VL) {
    const vf v = vf_load(x + i);
    sum += v * v;
  }
  return 1.0f / sqrtf(vf_sum(sum) / (float)width + eps);
}

static void norm_row(const struct norm *norm, int64_t row, float *scratch) {
  const int64_t width = norm->out.width;
  const float *x = norm->x + row * width;
  const float inverse = inverse_rms(x, width, norm->eps);
  if (norm->residual) {
    float *residual = norm->residual + row * width;
    for (int64_t i = 0; i < width; i += VL)
      vf_store(residual + i, vf_load(residual + i) + vf_load(x + i) * inverse * vf_load(norm->weight + i));
    return;
  }
  for (int64_t i = 0; i < width; i += VL)
    vf_store(scratch + i, vf_load(x + i) * inverse * vf_load(norm->weight + i));
  store_activation(scratch, &norm->out, row);
}

void run_norm(const void *op, const struct step *step, struct worker *worker) {
  const struct norm *norm = op;
  const int64_t rows = rows_of(&norm->op, step);
  for (int64_t row; (row = next_item(worker, rows)) >= 0;)
    norm_row(norm, row, worker->scratch);
}
