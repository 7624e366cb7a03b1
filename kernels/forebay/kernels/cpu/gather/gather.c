// Copies the rows whose logits are wanted to the front of a buffer.
#include "vec.h"
#include "ops.h"

void run_gather(const void *op, const struct step *step, struct worker *worker) {
  const struct gather *gather = op;
  const int64_t width = gather->width;
  for (int64_t row; (row = next_item(worker, step->sampled_count)) >= 0;)
    memcpy(gather->out + row * width, gather->x + step->sampled[row] * width, (size_t)width * sizeof(float));
}
