// Where things lie in the paged KV cache: page, then kv head, then K and V of that head, in 32-bit words.
// A word holds one fp32, or two bf16 that are neighbours along what attention sums over: two dimensions of a key, two
// tokens of a value. K is stored in tiles of 16 tokens as [dim / per word][16 tokens], so that 16 scores need no sum
// across lanes; V is [tokens / per word][dim].
#ifndef FOREBAY_KV_H
#define FOREBAY_KV_H

#include "vec.h"
#include "ops.h"

INLINE int per_word(const struct kv_cache *cache) { return cache->kind == BF16 ? 2 : 1; }

INLINE int64_t page_of(const struct kv_cache *cache, const struct step *step, int64_t row, int64_t position) {
  const int32_t *table = step->tables[cache->group] + row * step->table_widths[cache->group];
  return table[position / cache->page_tokens];
}

// Words of K, or of V, of one head of a page.
INLINE int64_t part_words(const struct kv_cache *cache) {
  return (int64_t)cache->page_tokens * cache->head_dim / per_word(cache);
}

INLINE int32_t *head_words(const struct kv_cache *cache, int64_t page, int head) {
  return (int32_t *)cache->pages + (page * cache->kv_heads + head) * 2 * part_words(cache);
}

#endif
