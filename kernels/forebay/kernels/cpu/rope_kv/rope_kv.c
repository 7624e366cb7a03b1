// Queries and keys of the step: optional RMS norm of each head, rotary embedding; keys and values go into the pages,
// queries stay in the buffer, multiplied by the attention scale.
#include <math.h>

#include "kv.h"

static void norm_head(float *x, const float *weight, int dim, float eps) {
  vf sum = vf_set(0.0f);
  for (int i = 0; i < dim; i += VL) sum += vf_load(x + i) * vf_load(x + i);
  const float inverse = 1.0f / sqrtf(vf_sum(sum) / (float)dim + eps);
  for (int i = 0; i < dim; i += VL) vf_store(x + i, vf_load(x + i) * inverse * vf_load(weight + i));
}

static void turn(float *restrict x, const float *restrict cosine, const float *restrict sine, int half) {
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

static void prepare_head(float *x, const float *weight, const struct rope_kv *rope, int64_t position) {
  const int half = rope->rotary_dim / 2;
  if (weight) norm_head(x, weight, rope->cache.head_dim, rope->eps);
  turn(x, rope->cosine + position * half, rope->sine + position * half, half);
}

static void write_key(const struct kv_cache *cache, int64_t page, int head, int64_t slot, const float *key) {
  const int dim = cache->head_dim, words = dim / per_word(cache);
  int32_t *to = head_words(cache, page, head) + slot / SUBTILE * SUBTILE * words + slot % SUBTILE;
  if (cache->kind == BF16)
    for (int i = 0; i < words; i++)
      to[i * SUBTILE] = (int32_t)(float_to_bf16(key[2 * i]) | (uint32_t)float_to_bf16(key[2 * i + 1]) << 16);
  else
    for (int i = 0; i < words; i++) memcpy(to + i * SUBTILE, key + i, sizeof *key);
}

// A bf16 value shares its words with its neighbour in time. The last token of a step clears the later neighbour, which
// may be memory that was never written: attention multiplies it by 0, and NaN would survive that.
static void write_value(const struct kv_cache *cache, int64_t page, int head, int64_t slot, const float *value, int last) {
  const int dim = cache->head_dim;
  int32_t *part = head_words(cache, page, head) + part_words(cache);
  if (cache->kind != BF16) {
    memcpy(part + slot * dim, value, (size_t)dim * sizeof *value);
    return;
  }
  uint16_t *to = (uint16_t *)(part + slot / 2 * dim) + slot % 2;
  for (int i = 0; i < dim; i++) to[2 * i] = float_to_bf16(value[i]);
  if (last && slot % 2 == 0)
    for (int i = 0; i < dim; i++) to[2 * i + 1] = 0;
}

static void prepare_token(const struct rope_kv *rope, const struct step *step, int64_t token, int kv_head) {
  const struct kv_cache *cache = &rope->cache;
  const int dim = cache->head_dim, queries = rope->heads / cache->kv_heads;
  const int64_t position = step->positions[token];
  float *heads = rope->qkv + token * (rope->heads + 2 * cache->kv_heads) * dim;
  for (int h = kv_head * queries; h < (kv_head + 1) * queries; h++) {
    float *query = heads + h * dim;
    prepare_head(query, rope->q_weight, rope, position);
    for (int i = 0; i < dim; i++) query[i] *= rope->scale;
  }
  float *key = heads + (rope->heads + kv_head) * dim;
  prepare_head(key, rope->k_weight, rope, position);
  const int64_t row = step->token_rows[token], slot = position % cache->page_tokens;
  const int64_t page = page_of(cache, step, row, position);
  const int last = token == step->starts[row] + step->counts[row] - 1;
  write_key(cache, page, kv_head, slot, key);
  write_value(cache, page, kv_head, slot, key + cache->kv_heads * dim, last);
}

void run_rope_kv(const void *op, const struct step *step, struct worker *worker) {
  const struct rope_kv *rope = op;
  const int64_t heads = rope->cache.kv_heads;
  const int64_t items = step->tokens_count * heads;
  for (int64_t item; (item = next_item(worker, items)) >= 0;)
    prepare_token(rope, step, item / heads, (int)(item % heads));
}
