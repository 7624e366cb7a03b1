// The parts of a mixture of experts around its linear layers: choice of experts, the order in which experts work on
// rows, and the weighted sum of what they give. Every row's result depends on that row alone.
#include <math.h>

#include "vec.h"
#include "ops.h"

static void softmax(const float *logits, int n, float *out) {
  float most = -INFINITY, sum = 0.0f;
  for (int i = 0; i < n; i++) most = logits[i] > most ? logits[i] : most;
  for (int i = 0; i < n; i++) out[i] = vf_exp(vf_set(logits[i] - most))[0];
  for (int i = 0; i < n; i++) sum += out[i];
  for (int i = 0; i < n; i++) out[i] /= sum;
}

static int highest(const float *values, int n) {
  int best = 0;
  for (int i = 1; i < n; i++) best = values[i] > values[best] ? i : best;
  return best;
}

// Of equal probabilities the lower expert is taken.
static void choose_experts(const struct route *route, int64_t token, float *probabilities) {
  const struct routing *routing = &route->routing;
  float *weights = routing->weights + token * routing->top_k, sum = 0.0f;
  softmax(route->logits + token * routing->experts, routing->experts, probabilities);
  for (int choice = 0; choice < routing->top_k; choice++) {
    const int expert = highest(probabilities, routing->experts);
    routing->experts_of[token * routing->top_k + choice] = expert;
    weights[choice] = probabilities[expert];
    sum += probabilities[expert];
    probabilities[expert] = -1.0f;
  }
  if (route->normalise)
    for (int choice = 0; choice < routing->top_k; choice++) weights[choice] /= sum;
}

// Counting sort of the assignments by expert; within an expert they keep the order of tokens.
static void sort_by_expert(const struct routing *routing, int64_t assignments) {
  int32_t *offsets = routing->offsets;
  memset(offsets, 0, (size_t)(routing->experts + 1) * sizeof(int32_t));
  for (int64_t a = 0; a < assignments; a++) offsets[routing->experts_of[a] + 1]++;
  for (int e = 0; e < routing->experts; e++) offsets[e + 1] += offsets[e];
  for (int64_t a = 0; a < assignments; a++) {
    const int32_t slot = offsets[routing->experts_of[a]]++;
    routing->slots[a] = slot;
    routing->order[slot] = (int32_t)(a / routing->top_k);
  }
  // Placing moved every offset to its expert's end.
  for (int e = routing->experts; e > 0; e--) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

void run_route(const void *op, const struct step *step, struct worker *worker) {
  const struct route *route = op;
  const int64_t tokens = rows_of(&route->op, step);
  for (int64_t token; (token = next_item(worker, tokens)) >= 0;) choose_experts(route, token, worker->scratch);
  wait_for_all(worker);
  if (worker->thread == 0) sort_by_expert(&route->routing, tokens * route->routing.top_k);
}

// Row `source` of 4-byte elements to row `target`.
static void copy_words(const void *from, int64_t source, void *to, int64_t target, int64_t width) {
  memcpy((char *)to + target * width * 4, (const char *)from + source * width * 4, (size_t)width * 4);
}

static void copy_activation(const struct activation *from, int64_t source, const struct activation *to, int64_t target) {
  static const int BYTES[] = {[FP32] = 4, [BF16] = 2, [INT8] = 1};
  const int64_t bytes = to->width * BYTES[to->kind];
  memcpy((char *)to->data + target * bytes, (const char *)from->data + source * bytes, (size_t)bytes);
  if (to->kind != INT8) return;
  copy_words(from->scales, source, to->scales, target, scale_groups(to->width));
  copy_words(from->sums, source, to->sums, target, scale_groups(to->width));
  if (to->group_sums) copy_words(from->group_sums, source, to->group_sums, target, to->width / QUANT_GROUP);
}

void run_sorted_gather(const void *op, const struct step *step, struct worker *worker) {
  const struct sorted_gather *gather = op;
  const int64_t rows = rows_of(&gather->op, step);
  for (int64_t row; (row = next_item(worker, rows)) >= 0;)
    copy_activation(&gather->x, gather->order[row], &gather->out, row);
}

void run_combine(const void *op, const struct step *step, struct worker *worker) {
  const struct combine *combine = op;
  const struct routing *routing = &combine->routing;
  const int64_t width = combine->width, tokens = rows_of(&combine->op, step);
  for (int64_t token; (token = next_item(worker, tokens)) >= 0;) {
    float *out = combine->out + token * width;
    for (int64_t a = token * routing->top_k; a < (token + 1) * routing->top_k; a++) {
      const float *x = combine->x + routing->slots[a] * width;
      for (int64_t i = 0; i < width; i += VL)
        vf_store(out + i, vf_load(out + i) + routing->weights[a] * vf_load(x + i));
    }
  }
}
