// The gated activation of a feed-forward block, function(gate) * up, written as the down projection wants it.
#include "activation.h"

// x sigmoid(x); the exponent is bounded where the result is 0 anyway.
static inline vf silu(vf x) { return x / (1.0f + vf_exp(vf_max(vf_set(-87.0f), -vf_max(x, vf_set(-87.0f))))); }

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
static inline vf gelu_tanh(vf x) {
  const vf u = 0.7978845608f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + vf_tanh(u));
}

static void gate_row(const float *gate, int64_t width, int32_t function, float *out) {
  const float *up = gate + width;
  if (function == GATE_SILU)
    for (int64_t i = 0; i < width; i += VL) vf_store(out + i, silu(vf_load(gate + i)) * vf_load(up + i));
  else
    for (int64_t i = 0; i < width; i += VL) vf_store(out + i, gelu_tanh(vf_load(gate + i)) * vf_load(up + i));
}

void run_gate(const void *op, const struct step *step, struct worker *worker) {
  const struct gate *gate = op;
  const int64_t width = gate->out.width;
  const int64_t rows = rows_of(&gate->op, step);
  for (int64_t row; (row = next_item(worker, rows)) >= 0;) {
    gate_row(gate->gate_up + row * 2 * width, width, gate->function, worker->scratch);
    store_activation(worker->scratch, &gate->out, row);
  }
}
