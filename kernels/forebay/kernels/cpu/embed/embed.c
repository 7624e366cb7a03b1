// Rows of the embedding table for the tokens of the step, widened to fp32 and scaled.
#include "vec.h"
#include "ops.h"

static void embed_row(const struct embed *embed, int64_t token, float *out) {
  const int64_t width = embed->width;
  if (embed->kind == BF16) {
    const uint16_t *row = (const uint16_t *)embed->table + token * width;
    for (int64_t i = 0; i < width; i++) out[i] = bf16_to_float(row[i]) * embed->scale;
  } else {
    const float *row = (const float *)embed->table + token * width;
    for (int64_t i = 0; i < width; i++) out[i] = row[i] * embed->scale;
  }
}

void run_embed(const void *op, const struct step *step, struct worker *worker) {
  const struct embed *embed = op;
  const int64_t rows = rows_of(&embed->op, step);
  for (int64_t row; (row = next_item(worker, rows)) >= 0;)
    embed_row(embed, step->tokens[row], embed->out + row * embed->width);
}
