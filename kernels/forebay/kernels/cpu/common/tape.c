// Walks a tape: one parallel region a call, a barrier after each op. Also says how large each record is, so that the
// Python mirror of the records can be checked.
#include <omp.h>
#include <sched.h>

#include "ops.h"

static run_op *const RUN[OP_KINDS] = {
    [OP_EMBED] = run_embed, [OP_GATHER] = run_gather, [OP_NORM] = run_norm, [OP_CONVERT] = run_convert,
    [OP_LINEAR] = run_linear, [OP_ROPE_KV] = run_rope_kv, [OP_ATTENTION] = run_attention, [OP_GATE] = run_gate,
    [OP_ROUTE] = run_route, [OP_SORTED_GATHER] = run_sorted_gather, [OP_COMBINE] = run_combine,
};

static const int32_t RECORD_BYTES[OP_KINDS] = {
    [OP_EMBED] = sizeof(struct embed), [OP_GATHER] = sizeof(struct gather), [OP_NORM] = sizeof(struct norm),
    [OP_CONVERT] = sizeof(struct convert), [OP_LINEAR] = sizeof(struct linear), [OP_ROPE_KV] = sizeof(struct rope_kv),
    [OP_ATTENTION] = sizeof(struct attention), [OP_GATE] = sizeof(struct gate), [OP_ROUTE] = sizeof(struct route),
    [OP_SORTED_GATHER] = sizeof(struct sorted_gather), [OP_COMBINE] = sizeof(struct combine),
};

int32_t forebay_record_bytes(int32_t kind) {
  return kind < OP_KINDS ? RECORD_BYTES[kind] : (int32_t)sizeof(struct step);
}

// Blocks never cross a multiple of 16 positions, and the later ones, which see more, come first.
static int32_t add_blocks(const struct step *step, int32_t row, struct block *blocks) {
  const int64_t start = step->starts[row], end = start + step->counts[row];
  if (start == end) return 0;
  const int64_t position = step->positions[start];
  int32_t n = 0;
  for (int64_t last = end; last > start;) {
    const int64_t at = position + (last - 1 - start);
    int64_t count = at % ATTENTION_BLOCK_TOKENS + 1;
    if (count > last - start) count = last - start;
    last -= count;
    blocks[n++] = (struct block){row, (int32_t)last, (int32_t)count, (int32_t)(position + last - start)};
  }
  return n;
}

static void plan_step(struct step *step) {
  step->blocks_count = 0;
  for (int32_t row = 0; row < step->rows_count; row++) {
    const int64_t end = step->starts[row] + step->counts[row];
    for (int64_t token = step->starts[row]; token < end; token++) step->token_rows[token] = row;
    step->blocks_count += add_blocks(step, row, step->blocks + step->blocks_count);
  }
}

struct barrier { _Alignas(64) atomic_int arrived; _Alignas(64) atomic_int phase; };

// Spins for a moment, because ops take microseconds; then gives the CPU to whoever needs it, because the thread that is
// waited for may be one that lost its CPU.
void wait_for_all(struct worker *worker) {
  enum { SPINS = 2000 };
  struct barrier *barrier = worker->barrier;
  const int phase = atomic_load_explicit(&barrier->phase, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) + 1 == worker->threads) {
    atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&barrier->phase, phase + 1, memory_order_release);
    return;
  }
  for (int spin = 0; atomic_load_explicit(&barrier->phase, memory_order_acquire) == phase; spin++) {
    if (spin < SPINS) _mm_pause();
    else sched_yield();
  }
}

static void walk(void **ops, int64_t count, const struct step *step, struct worker *worker) {
  for (int64_t i = 0; i < count; i++) {
    worker->taken = step->counters + i * worker->threads;
    worker->victim = 0;
    RUN[((const struct op *)ops[i])->kind](ops[i], step, worker);
    wait_for_all(worker);
  }
}

void forebay_run(void **ops, int64_t count, struct step *step) {
  struct barrier barrier = {0};
  plan_step(step);
  memset(step->counters, 0, (size_t)(count * step->threads) * sizeof(struct counter));
#pragma omp parallel num_threads(step->threads)
  {
    const int thread = omp_get_thread_num();
    struct worker worker = {.thread = thread, .threads = omp_get_num_threads(), .barrier = &barrier};
    worker.scratch = step->scratch + thread * step->scratch_bytes;
    walk(ops, count, step, &worker);
  }
}
