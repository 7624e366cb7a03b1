// Copies the rows whose logits are wanted to the front of a buffer.
#include "vec.h"
#include "ops.h"

void run_gather(void *op, const struct step *step, const struct worker *worker) {
  const struct gather *gather = op;
  const int64_t width = gather->width;
  const int64_t end = share_begin(step->sampled_count, worker->thread + 1, worker->threads);
  for (int64_t row = share_begin(step->sampled_count, worker->thread, worker->threads); row < end; row++)
    memcpy(gather->out + row * width, gather->x + step->sampled[row] * width, (size_t)width * sizeof(float));
}
