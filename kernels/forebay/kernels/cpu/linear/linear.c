// Linear layers for all kinds of weights: panels are shared out to threads, and within a panel rows go in chunks.
#include "panel.h"

struct kernels {
  panel_rows *const *rows;
  int most_rows;
  int k_per_step;      // k covered by 48 x 4 bytes of weights
};

static struct kernels kernels_of(const struct linear *linear, const struct step *step) {
  switch (linear->kind) {
    case INT8: return (struct kernels){INT8_ROWS, VL == 16 ? 4 : 2, 4};
    case INT4: return (struct kernels){INT4_ROWS, VL == 16 ? 4 : 2, 8};
    case FP32: return (struct kernels){FP32_ROWS, MAX_ROWS, 1};
    default: break;
  }
#if VL == 16
  if (step->bf16_instructions) return (struct kernels){BF16_DOT_ROWS, MAX_ROWS, 2};
#endif
  (void)step;
  return (struct kernels){BF16_WIDEN_ROWS, MAX_ROWS, 2};
}

struct job {
  const struct linear *linear;
  struct kernels kernels;
  int64_t panel_bytes, scales_bytes;  // of one panel
};

static int64_t scales_bytes(const struct linear *linear) {
  if (linear->kind == INT8) return PANEL * (int64_t)sizeof(float);
  if (linear->kind == INT4) return linear->k / QUANT_GROUP * PANEL * (int64_t)sizeof(uint16_t);
  return 0;
}

static struct panel panel_at(const struct job *job, int64_t expert, int64_t index, int part) {
  const struct linear *linear = job->linear;
  const int column = part * SUB_PANEL;
  const int scale_bytes = linear->kind == INT4 ? 2 : 4;
  const int64_t scales = expert * linear->expert_scales_bytes + index * job->scales_bytes + column * scale_bytes;
  struct panel panel = {.out_stride = linear->n, .k = linear->k, .accumulate = linear->accumulate};
  panel.weight = (const uint8_t *)linear->weight + expert * linear->expert_bytes + index * job->panel_bytes + column * 4;
  panel.scales = linear->scales ? (const uint8_t *)linear->scales + scales : 0;
  panel.mins = linear->mins ? (const uint8_t *)linear->mins + scales : 0;
  panel.bias = linear->bias ? linear->bias + index * PANEL + column : 0;
  panel.out = linear->out + index * PANEL + column;
  panel.columns = (int)(linear->n - index * PANEL - column);
  return panel;
}

// While chunk c of the rows works on this panel it fetches part c of the next one.
static void multiply_panel(const struct job *job, int64_t expert, int64_t index, int64_t begin, int64_t end) {
  const int most = job->kernels.most_rows;
  const int chunks = (int)((end - begin + most - 1) / most);
  const int step = chunks ? (PANEL * 4 + chunks - 1) / chunks : 0;
  for (int part = 0; part < PANEL / SUB_PANEL; part++) {
    struct panel panel = panel_at(job, expert, index, part);
    for (int chunk = 0; chunk < chunks; chunk++) {
      const int64_t row = begin + (int64_t)chunk * most;
      const int rows = end - row < most ? (int)(end - row) : most;
      panel.ahead = panel.weight + job->panel_bytes + chunk * (job->panel_bytes / chunks);
      job->kernels.rows[rows](&panel, &job->linear->x, row, part ? 0 : step);
    }
  }
}

void run_linear(const void *op, const struct step *step, struct worker *worker) {
  const struct linear *linear = op;
  struct job job = {.linear = linear, .kernels = kernels_of(linear, step), .scales_bytes = scales_bytes(linear)};
  job.panel_bytes = linear->k / job.kernels.k_per_step * PANEL * 4;
  const int64_t panels = (linear->n + PANEL - 1) / PANEL, items = panels * linear->experts;
  for (int64_t item; (item = next_item(worker, items)) >= 0;) {
    const int64_t expert = item / panels;
    const int64_t begin = linear->offsets ? linear->offsets[expert] : 0;
    const int64_t end = linear->offsets ? linear->offsets[expert + 1] : rows_of(&linear->op, step);
    multiply_panel(&job, expert, item % panels, begin, end);
  }
}
