// Paged causal attention for decode rows and prefill chunks alike. A work item is a block of up to 16 query tokens of
// one row with all query heads of one kv head. Keys are visited in tiles of 64 absolute positions with a running
// maximum and sum for each query, and each query's operations are the same whatever else is in its block: decode,
// prefill and every way to cut a prompt give the same bits. With bf16 pages, queries and weights are rounded to bf16 for
// the products; sums are fp32.
#include <math.h>

#include "attend.h"

enum { PIECES = ATTENTION_TILE / SUBTILE };

struct job {
  const struct attention *op;
  const struct step *step;
  const struct multiply *multiply;
  struct block block;
  int kv_head, group, queries;  // queries = block.count * group; query q is token q / group, head q % group
  int per_word;                 // 2 with bf16 pages
  int32_t *q, *weights;         // words: [queries][dim], [queries][64 tokens]
  float *scores, *mixed;        // [queries][64], [queries][dim]
  float *most, *sum;            // [queries]: running maximum and sum of exponentials
};

static const struct multiply *multiply_for(const struct attention *op, const struct step *step) {
  if (op->cache.kind == FP32) return &MULTIPLY_FP32;
#if VL == 16
  if (step->bf16_instructions) return &MULTIPLY_DOT;
#endif
  (void)step;
  return &MULTIPLY_WIDEN;
}

static struct job job_of(const struct attention *op, const struct step *step, int64_t item, float *scratch) {
  struct job job = {.op = op, .step = step, .block = step->blocks[item / op->cache.kv_heads]};
  const int64_t dim = op->cache.head_dim;
  job.kv_head = (int)(item % op->cache.kv_heads);
  job.group = op->heads / op->cache.kv_heads;
  job.queries = job.block.count * job.group;
  job.multiply = multiply_for(op, step);
  job.per_word = per_word(&op->cache);
  job.mixed = scratch;
  job.scores = job.mixed + job.queries * dim;
  job.most = job.scores + job.queries * ATTENTION_TILE;
  job.sum = job.most + job.queries;
  job.q = (int32_t *)(job.sum + job.queries);
  job.weights = job.q + job.queries * dim / job.per_word;
  return job;
}

static void load_queries(const struct job *job) {
  const int64_t dim = job->op->cache.head_dim, width = job->group * dim;
  const int64_t row = (job->op->heads + 2 * job->op->cache.kv_heads) * dim;
  for (int token = 0; token < job->block.count; token++) {
    const float *from = job->op->qkv + (job->block.first + token) * row + job->kv_head * width;
    int32_t *to = job->q + token * width / job->per_word;
    if (job->per_word == 2)
      for (int64_t i = 0; i < width; i += VL) vf_store_bf16((uint16_t *)to + i, vf_load(from + i));
    else
      memcpy(to, from, (size_t)width * sizeof(float));
  }
  memset(job->mixed, 0, (size_t)(job->queries * dim) * sizeof(float));
  for (int query = 0; query < job->queries; query++) {
    job->most[query] = -1e30f;
    job->sum[query] = 0.0f;
  }
}

// Where the keys from `position` on begin, a multiple of 16.
static const int32_t *keys_from(const struct job *job, int64_t position) {
  const struct kv_cache *cache = &job->op->cache;
  const int64_t slot = position % cache->page_tokens;
  return head_words(cache, page_of(cache, job->step, job->block.row, position), job->kv_head) +
         slot * cache->head_dim / job->per_word;
}

static const int32_t *values_from(const struct job *job, int64_t position) {
  return keys_from(job, position) + part_words(&job->op->cache);
}

// scores[query][64] = q . k; what lies after `last` is computed on stale keys and masked later.
static void score_tile(const struct job *job, int64_t tile, int64_t last) {
  const int64_t words = job->op->cache.head_dim / job->per_word;
  const int32_t *pieces[PIECES];
  for (int piece = 0; piece < PIECES; piece++) {
    const int64_t position = tile + piece * SUBTILE;
    pieces[piece] = position <= last ? keys_from(job, position) : pieces[0];
  }
  for (int query = 0; query < job->queries; query += CHUNK_ROWS) {
    const int rows = job->queries - query < CHUNK_ROWS ? job->queries - query : CHUNK_ROWS;
    const int32_t *q = job->q + query * words;
    float *scores = job->scores + query * ATTENTION_TILE;
#if VL == 16
    job->multiply->wide[rows](q, words, pieces, SUBTILE, words, scores, ATTENTION_TILE, 0);
#else
    for (int piece = 0; piece < PIECES; piece++)
      job->multiply->narrow[rows](q, words, pieces[piece], SUBTILE, words, scores + piece * SUBTILE, ATTENTION_TILE, 0);
#endif
  }
}

static void cap_scores(float *scores, float cap) {
  for (int i = 0; i < ATTENTION_TILE; i += VL) vf_store(scores + i, cap * vf_tanh(vf_load(scores + i) / cap));
}

// Only entries low..high of the tile are seen.
static void mask_scores(float *scores, int64_t low, int64_t high) {
  for (int i = 0; i < ATTENTION_TILE; i++)
    if (i < low || i > high) scores[i] = -INFINITY;
}

// Exponentials of a query's scores as weights of its values; returns their sum as they are used, after rounding.
static float store_weights(const struct job *job, int query, float most) {
  const float *scores = job->scores + query * ATTENTION_TILE;
  int32_t *weights = job->weights + query * (ATTENTION_TILE / job->per_word);
  vf sum = vf_set(0.0f);
  for (int i = 0; i < ATTENTION_TILE; i += VL) {
    vf weight = vf_exp(vf_load(scores + i) - most);
    if (job->per_word == 2) {
      const vu half = vf_to_bf16(weight);
      store_low_halves((uint16_t *)weights + i, half);
      weight = (vf)(half << 16);
    } else {
      vf_store((float *)weights + i, weight);
    }
    sum += weight;
  }
  return vf_sum(sum);
}

// A tile that the query does not see changes nothing: its maximum is -inf and its weights are exactly 0.
static void weigh_query(const struct job *job, int query) {
  const float *scores = job->scores + query * ATTENTION_TILE;
  vf highest = vf_load(scores);
  for (int i = VL; i < ATTENTION_TILE; i += VL) highest = vf_max(highest, vf_load(scores + i));
  const float before = job->most[query], tile_most = vf_highest(highest);
  if (tile_most > before) {
    const int dim = job->op->cache.head_dim;
    const vf shrink = vf_exp(vf_set(before - tile_most));
    float *mixed = job->mixed + (int64_t)query * dim;
    for (int i = 0; i < dim; i += VL) vf_store(mixed + i, vf_load(mixed + i) * shrink);
    job->sum[query] *= shrink[0];
    job->most[query] = tile_most;
  }
  job->sum[query] += store_weights(job, query, job->most[query]);
}

static void weigh_tile(const struct job *job, int64_t tile) {
  const int window = job->op->window;
  for (int query = 0; query < job->queries; query++) {
    const int64_t high = job->block.position + query / job->group - tile;
    const int64_t low = window ? high - window + 1 : 0;
    float *scores = job->scores + query * ATTENTION_TILE;
    if (job->op->softcap > 0.0f) cap_scores(scores, job->op->softcap);
    if (low > 0 || high < ATTENTION_TILE - 1) mask_scores(scores, low, high);
    weigh_query(job, query);
  }
}

// mixed[rows][dim] += weights[rows][words] values[words][dim], for words of tokens that lie one after the other.
static void mix_run(const struct job *job, int query, int rows, int64_t begin, int64_t words, const int32_t *values) {
  const int64_t dim = job->op->cache.head_dim, stride = ATTENTION_TILE / job->per_word;
  const int32_t *weights = job->weights + query * stride + begin;
  float *mixed = job->mixed + query * dim;
  int64_t column = 0;
#if VL == 16
  for (; column + 64 <= dim; column += 64) {
    const int32_t *at = values + column;
    const int32_t *const pieces[4] = {at, at + 16, at + 32, at + 48};
    job->multiply->wide[rows](weights, stride, pieces, dim, words, mixed + column, dim, 1);
  }
#endif
  for (; column < dim; column += 16)
    job->multiply->narrow[rows](weights, stride, values + column, dim, words, mixed + column, dim, 1);
}

static void mix_tile(const struct job *job, int64_t tile, int64_t last) {
  const int64_t page_tokens = job->op->cache.page_tokens;
  const int64_t end = last - tile + 1 < ATTENTION_TILE ? last - tile + 1 : ATTENTION_TILE;
  for (int64_t begin = 0, tokens; begin < end; begin += tokens) {
    const int64_t left = page_tokens - (tile + begin) % page_tokens;
    tokens = left < end - begin ? left : end - begin;
    // An odd last token brings its neighbour along, with weight 0.
    const int64_t words = (tokens + job->per_word - 1) / job->per_word;
    const int32_t *values = values_from(job, tile + begin);
    for (int query = 0; query < job->queries; query += CHUNK_ROWS) {
      const int rows = job->queries - query < CHUNK_ROWS ? job->queries - query : CHUNK_ROWS;
      mix_run(job, query, rows, begin / job->per_word, words, values);
    }
  }
}

static void store_block(const struct job *job) {
  const int64_t dim = job->op->cache.head_dim, width = job->group * dim;
  for (int query = 0; query < job->queries; query++) {
    const vf inverse = vf_set(1.0f / job->sum[query]);
    const float *mixed = job->mixed + query * dim;
    float *out = job->op->out + (job->block.first + query / job->group) * job->op->heads * dim +
                 job->kv_head * width + query % job->group * dim;
    for (int64_t i = 0; i < dim; i += VL) vf_store(out + i, vf_load(mixed + i) * inverse);
  }
}

static void prefetch_tile(const struct job *job, int64_t tile, int64_t last, int values) {
  const int64_t words = SUBTILE * job->op->cache.head_dim / job->per_word;
  for (int64_t position = tile; position < tile + ATTENTION_TILE && position <= last; position += SUBTILE) {
    const int32_t *from = values ? values_from(job, position) : keys_from(job, position);
    for (int64_t word = 0; word < words; word += 16) __builtin_prefetch(from + word, 0, 3);
  }
}

static void attend(const struct job *job) {
  const int64_t last = job->block.position + job->block.count - 1;
  const int64_t seen_from = job->op->window ? job->block.position - job->op->window + 1 : 0;
  const int64_t first = seen_from > 0 ? seen_from / ATTENTION_TILE * ATTENTION_TILE : 0;
  load_queries(job);
  for (int64_t tile = first; tile <= last; tile += ATTENTION_TILE) {
    prefetch_tile(job, tile + ATTENTION_TILE, last, 0);
    score_tile(job, tile, last);
    weigh_tile(job, tile);
    prefetch_tile(job, tile + ATTENTION_TILE, last, 1);
    mix_tile(job, tile, last);
  }
  store_block(job);
}

void run_attention(const void *op, const struct step *step, struct worker *worker) {
  const struct attention *attention = op;
  const int64_t items = (int64_t)step->blocks_count * attention->cache.kv_heads;
  for (int64_t item; (item = next_item(worker, items)) >= 0;) {
    const struct job job = job_of(attention, step, item, worker->scratch);
    attend(&job);
  }
}
