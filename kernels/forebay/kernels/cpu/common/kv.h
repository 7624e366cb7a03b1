// Where things lie in the paged KV cache: page, then kv head, then K and V of that head.
// K is stored in tiles of 16 tokens as [dim][16 tokens], so that a score of 16 tokens needs no sum across lanes;
// V is [tokens][dim]. Offsets count elements.
#ifndef FOREBAY_KV_H
#define FOREBAY_KV_H

#include "vec.h"
#include "ops.h"

INLINE int64_t head_offset(const struct kv_cache *cache, int64_t page, int head) {
  return (page * cache->kv_heads + head) * 2 * cache->page_tokens * cache->head_dim;
}

INLINE int64_t page_of(const struct kv_cache *cache, const struct step *step, int64_t row, int64_t position) {
  const int32_t *table = step->tables[cache->group] + row * step->table_widths[cache->group];
  return table[position / cache->page_tokens];
}

#endif
