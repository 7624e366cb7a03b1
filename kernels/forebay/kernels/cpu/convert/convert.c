// fp32 rows as activations of the next linear layer: a copy, bf16, or int8 with a scale a row.
#include "activation.h"

void run_convert(const void *op, const struct step *step, struct worker *worker) {
  const struct convert *convert = op;
  const int64_t rows = rows_of(&convert->op, step);
  for (int64_t row; (row = next_item(worker, rows)) >= 0;)
    store_activation(convert->x + row * convert->out.width, &convert->out, row);
}
