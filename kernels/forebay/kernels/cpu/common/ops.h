// The records of a tape, mirrored field by field in records.py (sizes are compared when the library is loaded).
// Every record starts with `struct op`. Pointers are owned by the caller and must stay valid while the tape lives.
#ifndef FOREBAY_OPS_H
#define FOREBAY_OPS_H

#include <stdatomic.h>
#include <stdint.h>

#include "vec.h"

enum { MAX_GROUPS = 4, ATTENTION_BLOCK_TOKENS = 16, ATTENTION_TILE = 64, SUBTILE = 16 };
enum { PANEL = 48, QUANT_GROUP = 32, SCALE_GROUP = 64 };

enum op_kind { OP_EMBED, OP_GATHER, OP_NORM, OP_CONVERT, OP_LINEAR, OP_ROPE_KV, OP_ATTENTION, OP_GATE, OP_ROUTE,
               OP_SORTED_GATHER, OP_COMBINE, OP_KINDS };
enum number_kind { FP32, BF16, INT8, INT4 };
// Which count of the step says how many rows an op has; an op multiplies it by its `multiple`.
enum row_kind { ROWS_TOKENS, ROWS_SAMPLED };

struct op {
  int32_t kind;
  int32_t rows;         // enum row_kind
  int32_t multiple;     // rows for each token, 1 but for the slots of a mixture of experts
  int32_t padding;
};

// Rows of activations. INT8 rows carry a scale for each 64 elements and the sum of those elements, and, when
// `group_sums` is not null, the sum of each group of 32 (what int4 weights need).
struct activation {
  void *data;
  float *scales;        // [rows][scale groups]
  int32_t *sums;        // [rows][scale groups]
  int32_t *group_sums;  // [rows][width / 32]
  int64_t width;
  int32_t kind;         // enum number_kind
  int32_t padding;
};

INLINE int64_t scale_groups(int64_t width) { return (width + SCALE_GROUP - 1) / SCALE_GROUP; }

struct embed { struct op op; const void *table; float *out; int64_t width; float scale; int32_t kind; };

struct gather { struct op op; const float *x; float *out; int64_t width; };

struct norm {
  struct op op;
  float *x;             // [rows][width]
  const float *weight;  // [width]
  struct activation out;
  float *residual;      // not null: residual += normalised x, and `out` is not written
  float eps;
  int32_t padding;
};

struct convert { struct op op; const float *x; struct activation out; };

struct linear {
  struct op op;
  struct activation x;
  const void *weight;
  const void *scales;   // INT8: float [panels][48]; INT4: fp16 [panels][k / 32][48]
  const void *mins;     // INT4 with a minimum: fp16 like scales; else null
  const float *bias;    // padded to panels; null without
  float *out;           // [rows][n]
  const int32_t *offsets;  // not null: expert e has rows offsets[e]..offsets[e + 1]
  int64_t n, k;
  int64_t expert_bytes, expert_scales_bytes;  // strides of `weight` and of `scales` / `mins` between experts
  int32_t experts;      // 1 without experts
  int32_t kind;         // of the weights
  int32_t accumulate;   // out += instead of out =
  int32_t padding;
};

struct kv_cache {
  void *pages;          // [page][kv head][K tiles of 16 tokens: dim x 16, then V: tokens x dim]
  int32_t page_tokens, kv_heads, head_dim, kind, group, padding;
};

struct rope_kv {
  struct op op;
  float *qkv;           // [tokens][(heads + 2 kv heads) head_dim]; queries are replaced by turned, scaled ones
  const float *q_weight, *k_weight;  // [head_dim], null without qk-norm
  const float *cosine, *sine;        // [positions][rotary_dim / 2]
  struct kv_cache cache;
  int32_t heads, rotary_dim;
  float scale, eps;
};

struct attention {
  struct op op;
  const float *qkv;     // as `rope_kv` left it
  float *out;           // [tokens][heads * head_dim]
  struct kv_cache cache;
  int32_t heads, window;  // window in tokens, 0 = all
  float softcap;          // 0 = none
  int32_t padding;
};

struct gate {
  struct op op;
  const float *gate_up;  // [rows][2 width]
  struct activation out;
  int32_t function, padding;  // enum gate_function
};
enum gate_function { GATE_SILU, GATE_GELU_TANH };

// How the tokens of a step are spread over experts: assignment a = token * top_k + choice. Sorted rows are grouped by
// expert; expert e has the sorted rows offsets[e]..offsets[e + 1].
struct routing {
  float *weights;       // [assignments]
  int32_t *experts_of;  // [assignments]
  int32_t *slots;       // [assignments]: the assignment's sorted row
  int32_t *order;       // [assignments]: the sorted row's token
  int32_t *offsets;     // [experts + 1]
  int32_t experts, top_k;
};

struct route { struct op op; const float *logits; struct routing routing; int32_t normalise, padding; };

struct sorted_gather { struct op op; struct activation x, out; const int32_t *order; };

struct combine { struct op op; const float *x; float *out; struct routing routing; int64_t width; };

// A run of query tokens of one row that attention handles together; `first` counts from the step's first token.
struct block { int32_t row, first, count, position; };

struct step {
  int64_t tokens_count, rows_count, sampled_count;
  const int64_t *tokens, *positions, *starts, *counts, *sampled;
  const int32_t *tables[MAX_GROUPS];
  int64_t table_widths[MAX_GROUPS];
  int32_t *token_rows;   // [tokens], filled by run_tape
  struct block *blocks;  // [tokens], filled by run_tape
  uint8_t *scratch;      // threads x scratch_bytes
  int64_t scratch_bytes;
  struct counter *counters;  // [ops][threads]
  int32_t blocks_count, threads;
  int32_t bf16_instructions, padding;  // 1 where the CPU has avx512_bf16
};

// One thread of a run. `taken` counts, for each thread, the items of its share of the current op that are taken.
struct worker {
  int thread, threads;
  void *scratch;
  struct barrier *barrier;
  struct counter *taken;  // [threads]
  int victim;             // how many shares are used up, own first
};
// Each on a cache line of its own.
struct counter { _Alignas(64) atomic_int value; };

INLINE int64_t rows_of(const struct op *op, const struct step *step) {
  return op->multiple * (op->rows == ROWS_SAMPLED ? step->sampled_count : step->tokens_count);
}

// The next of `items` work items for this thread, or -1. Each thread first works through its own contiguous share, then
// through what others have not begun: a thread that lost its CPU to another process does not hold up the step.
INLINE int64_t next_item(struct worker *worker, int64_t items) {
  for (; worker->victim < worker->threads; worker->victim++) {
    const int owner = (worker->thread + worker->victim) % worker->threads;
    const int64_t begin = items * owner / worker->threads, end = items * (owner + 1) / worker->threads;
    const int64_t at = begin + atomic_fetch_add_explicit(&worker->taken[owner].value, 1, memory_order_relaxed);
    if (at < end) return at;
  }
  return -1;
}

void wait_for_all(struct worker *worker);

typedef void run_op(const void *op, const struct step *step, struct worker *worker);
run_op run_embed, run_gather, run_norm, run_convert, run_linear, run_rope_kv, run_attention, run_gate, run_route,
    run_sorted_gather, run_combine;

#endif
