// fp32 rows as activations of the next linear layer: a copy, bf16, or int8 with a scale a row.
#include "activation.h"

void run_convert(void *op, const struct step *step, const struct worker *worker) {
  const struct convert *convert = op;
  const int64_t rows = rows_of(&convert->op, step);
  const int64_t end = share_begin(rows, worker->thread + 1, worker->threads);
  for (int64_t row = share_begin(rows, worker->thread, worker->threads); row < end; row++)
    store_activation(convert->x + row * convert->out.width, &convert->out, row);
}
