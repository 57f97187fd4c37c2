// The CPU forward of drawloom: packed matrix products, paged attention and whole decoder layers. Called through ctypes; the tensors
// belong to the caller. Built at first use by kernels/native.py; kernels/*.py hold the references and the documentation of each entry.
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "native_attention.h"
#include "native_matmul.h"
#include "native_pack.h"
#include "native_pick.h"
#include "native_suffix.h"

// Work in phases: a thread takes items of a phase until none is left, then waits for the items of others, not for the others themselves:
// a thread that the system has put aside between two items holds up nobody.
typedef struct {
  atomic_long next, done;
  char apart[128 - 2 * sizeof(atomic_long)];
} Phase;

#define EACH(phase, item, total)                                                                    \
  for (long item, total_ = (total), once_ = 1; once_; once_ = 0, settle(phase, total_))            \
    while ((item = atomic_fetch_add_explicit(&(phase)->next, 1, memory_order_relaxed)) < total_)   \
      for (int open_ = 1; open_; open_ = 0, atomic_fetch_add_explicit(&(phase)->done, 1, memory_order_release))

static void settle(Phase *phase, long total) {
  for (long spins = 0; atomic_load_explicit(&phase->done, memory_order_acquire) < total; spins++) {
    if (spins > 2000) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
  }
}

INLINE int64_t panels(const Matrix *m) { return (m->outputs + NR - 1) / NR; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

enum { STORE, ADD };

// An item of a product: rows first..first + num against panel p. Single rows take several panels to an item, so that items are not too small.
typedef struct {
  int64_t first, p, end;
  int num;
} Part;

INLINE int64_t panels_per_item(int64_t rows) { return rows <= 2 ? 4 : 1; }
INLINE int64_t items_per_chunk(const Matrix *m, int64_t rows) { return (panels(m) + panels_per_item(rows) - 1) / panels_per_item(rows); }
INLINE int64_t num_parts(const Matrix *m, int64_t rows) { return (rows + MC - 1) / MC * items_per_chunk(m, rows); }

INLINE Part part_of(const Matrix *m, int64_t rows, int64_t item) {
  const int64_t first = item / items_per_chunk(m, rows) * MC, p = item % items_per_chunk(m, rows) * panels_per_item(rows);
  return (Part){first, p, least(p + panels_per_item(rows), panels(m)), (int)least(MC, rows - first)};
}

// out [rows, outputs] = or += in [rows, inputs] times the matrix, plus bias.
static void product(Phase *phase, const Matrix *m, const float *in, int64_t rows, float *out, int mode) {
  float c[MC * NR] __attribute__((aligned(64)));
  EACH(phase, item, num_parts(m, rows)) {
    const Part part = part_of(m, rows, item);
    for (int64_t p = part.p; p < part.end; p++) {
      const int64_t width = least(NR, m->outputs - p * NR);
      panel_product(m, p, in + part.first * m->inputs, m->inputs, part.num, c);
      for (int r = 0; r < part.num; r++) {
        float *to = out + (part.first + r) * m->outputs + p * NR;
        for (int64_t i = 0; i < width; i++) {
          const float value = c[r * NR + i] + (m->bias ? m->bias[p * NR + i] : 0.0f);
          to[i] = mode == ADD ? to[i] + value : value;
        }
      }
    }
  }
}

// out [rows, inner] = silu(in times gate) * (in times up)
static void gated(Phase *phase, const Matrix *gate, const Matrix *up, const float *in, int64_t rows, float *out) {
  float g[MC * NR] __attribute__((aligned(64))), u[MC * NR] __attribute__((aligned(64)));
  EACH(phase, item, num_parts(gate, rows)) {
    const Part part = part_of(gate, rows, item);
    for (int64_t p = part.p; p < part.end; p++) {
      const int64_t width = least(NR, gate->outputs - p * NR);
      panel_product(gate, p, in + part.first * gate->inputs, gate->inputs, part.num, g);
      panel_product(up, p, in + part.first * up->inputs, up->inputs, part.num, u);
      for (int i = 0; i < part.num * NR; i += 8) AT(g + i) = AT(g + i) / (1.0f + vexp(-AT(g + i))) * AT(u + i);
      for (int r = 0; r < part.num; r++) memcpy(out + (part.first + r) * gate->outputs + p * NR, g + r * NR, (size_t)width * 4);
    }
  }
}

// out = in / rms(in) * weight, one vector; width is a multiple of 8.
INLINE void rms_norm(const float *in, const float *weight, int64_t width, float eps, float *out) {
  v8 squares = {0};
  for (int64_t i = 0; i < width; i += 8) squares += AT(in + i) * AT(in + i);
  const float scale = 1.0f / sqrtf(hsum(squares) / (float)width + eps);
  for (int64_t i = 0; i < width; i += 8) AT(out + i) = AT(in + i) * scale * AT(weight + i);
}

#define ROWS_AT_ONCE 8

static void norm_rows(Phase *phase, const float *in, const float *weight, int64_t rows, int64_t width, float eps, float *out) {
  EACH(phase, item, (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE)
  for (int64_t r = item * ROWS_AT_ONCE; r < least(rows, (item + 1) * ROWS_AT_ONCE); r++)
    rms_norm(in + r * width, weight, width, eps, out + r * width);
}

// x [D] rotated by the row's angles: halves (a, b) -> (a cos - b sin, b cos + a sin)
INLINE void rotate(float *x, const float *cosines, const float *sines, int64_t D) {
  for (int64_t i = 0; i < D / 2; i++) {
    const float a = x[i], b = x[i + D / 2];
    x[i] = a * cosines[i] - b * sines[i];
    x[i + D / 2] = b * cosines[i + D / 2] + a * sines[i + D / 2];
  }
}

typedef struct {
  Matrix qkv, out, gate, up, down;
  const float *norm_in, *norm_mid, *norm_q, *norm_k;  // norm_q, norm_k [head_dim] or null
  float *keys, *values;                               // [num_slots, key_heads, head_dim]
  Heads heads;
} Layer;

// Normalise and rotate one row's queries and keys in place, and put keys and values into the row's slot.
static void place_row(const Layer *layer, const Batch *batch, int64_t r, float *qkv, const float *cosines, const float *sines, float eps) {
  const Heads *h = &layer->heads;
  const int64_t D = h->head_dim, width = h->key_heads * D;
  for (int64_t i = 0; i < h->heads + h->key_heads; i++) {
    const float *norm = i < h->heads ? layer->norm_q : layer->norm_k;
    if (norm) rms_norm(qkv + i * D, norm, D, eps, qkv + i * D);
    rotate(qkv + i * D, cosines + r * D, sines + r * D, D);
  }
  memcpy(layer->keys + batch->slots[r] * width, qkv + h->heads * D, (size_t)width * 4);
  memcpy(layer->values + batch->slots[r] * width, qkv + (h->heads + h->key_heads) * D, (size_t)width * 4);
}

// Rows of one sequence that are attended together: [first, end) of each tile; and room for each thread's scores and slots.
typedef struct {
  int32_t *ends;
  int64_t num, width;  // width: keys of the longest sequence, rounded up
  float *scores;       // [threads, TILE_HEADS or more, width]
  int64_t *slots;      // [threads, width]
} Tiles;

static Tiles tiles_of(const Heads *h, const Batch *batch, int threads) {
  const int64_t tile_rows = rows_per_tile(h), pairs = tile_rows * (h->heads / h->key_heads);
  Tiles tiles = {malloc((size_t)batch->rows * 4 + 4), 0, 8, 0, 0};
  for (int64_t s = 0; tiles.ends && s < batch->sequences; s++) {
    const int64_t start = batch->row_starts[s], end = batch->row_starts[s + 1], keys = batch->prefix_lens[s] + end - start;
    for (int64_t r = start; r < end; r += tile_rows) tiles.ends[tiles.num++] = (int32_t)least(r + tile_rows, end);
    tiles.width = keys + 8 > tiles.width ? keys + 8 : tiles.width;
  }
  tiles.scores = malloc((size_t)(threads * pairs * tiles.width) * 4);
  tiles.slots = malloc((size_t)(threads * tiles.width) * 8);
  return tiles;
}

static int tiles_failed(const Tiles *tiles) { return !tiles->ends || !tiles->scores || !tiles->slots; }
static void free_tiles(const Tiles *tiles) { free(tiles->ends), free(tiles->scores), free(tiles->slots); }

// Without window or ancestors the rows of a sequence see beginnings of one list; otherwise each row has its own.
static void attend_rows(Phase *phase, const Heads *h, const Batch *batch, const Tiles *tiles, const float *q, int64_t q_stride, const float *keys, const float *values, float *out) {
  const int64_t out_stride = h->heads * h->head_dim, pairs = rows_per_tile(h) * (h->heads / h->key_heads);
  float *scores = tiles->scores + omp_get_thread_num() * pairs * tiles->width;
  int64_t *slots = tiles->slots + omp_get_thread_num() * tiles->width;
  EACH(phase, item, tiles->num * h->key_heads) {
    const int64_t index = item / h->key_heads, g = item % h->key_heads;
    const int64_t first = index ? tiles->ends[index - 1] : 0, end = tiles->ends[index], step = h->window || batch->ancestors ? 1 : end - first;
    for (int64_t r = first; r < end; r += step) {
      Tile tile = {q + r * q_stride, out + r * out_stride, q_stride, step, {0}};
      int64_t longest = r;
      for (int64_t i = r; i < r + step; i++) longest = batch->see[i] > batch->see[longest] ? i : longest;
      const int64_t num = visible_slots(batch, longest, h->window, slots);
      for (int64_t i = 0; i < step; i++) tile.num[i] = step == 1 ? num : least(num, batch->prefix_lens[batch->owner[r]] + batch->see[r + i]);
      attend_heads(h, &tile, g, keys, values, slots, tiles->width, scores);
    }
  }
}

#define PHASES 9

static void run_layer(Phase *phase, const Layer *layer, const Batch *batch, const float *cosines, const float *sines, float eps, const Tiles *tiles, float *hidden, float *normed, float *qkv, float *mixed, float *inner) {
  const int64_t rows = batch->rows, width = layer->qkv.inputs;
  norm_rows(phase, hidden, layer->norm_in, rows, width, eps, normed);
  product(phase + 1, &layer->qkv, normed, rows, qkv, STORE);
  EACH(phase + 2, item, (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE)
  for (int64_t r = item * ROWS_AT_ONCE; r < least(rows, (item + 1) * ROWS_AT_ONCE); r++)
    place_row(layer, batch, r, qkv + r * layer->qkv.outputs, cosines, sines, eps);
  attend_rows(phase + 3, &layer->heads, batch, tiles, qkv, layer->qkv.outputs, layer->keys, layer->values, mixed);
  product(phase + 4, &layer->out, mixed, rows, hidden, ADD);
  norm_rows(phase + 5, hidden, layer->norm_mid, rows, width, eps, normed);
  gated(phase + 6, &layer->gate, &layer->up, normed, rows, inner);
  product(phase + 7, &layer->down, inner, rows, hidden, ADD);
}

typedef struct {
  int64_t num_layers, width;
  float eps;
  const Layer *layers;
  const float *norm_out;
} Stack;

// hidden [rows, width] through all layers and the last norm, if there is one, in place; cosines and sines [rows, head_dim]. 0, or 1 when memory runs out.
int drawloom_layers(const Stack *stack, const Batch *batch, const float *cosines, const float *sines, float *hidden, int threads) {
  const Layer *one = stack->layers;
  const int64_t rows = batch->rows, mixed_width = one->heads.heads * one->heads.head_dim;
  const int64_t floats = rows * (stack->width + one->qkv.outputs + mixed_width + one->gate.outputs);
  float *normed = malloc((size_t)floats * 4 + 64);
  Phase *phases = calloc((size_t)stack->num_layers * PHASES + 1, sizeof(Phase));
  const Tiles tiles = tiles_of(&one->heads, batch, threads);
  if (!normed || !phases || tiles_failed(&tiles)) return free(normed), free(phases), free_tiles(&tiles), 1;
  float *qkv = normed + rows * stack->width, *mixed = qkv + rows * one->qkv.outputs, *inner = mixed + rows * mixed_width;
#pragma omp parallel num_threads(threads)
  {
    for (int64_t l = 0; l < stack->num_layers; l++)
      run_layer(phases + l * PHASES, stack->layers + l, batch, cosines, sines, stack->eps, &tiles, hidden, normed, qkv, mixed, inner);
    if (stack->norm_out) norm_rows(phases + stack->num_layers * PHASES, hidden, stack->norm_out, rows, stack->width, stack->eps, hidden);
  }
  return free(normed), free(phases), free_tiles(&tiles), 0;
}

// out [rows, outputs] = in [rows, inputs] times a packed matrix.
void drawloom_linear(const Matrix *matrix, const float *in, int64_t rows, float *out, int threads) {
  Phase phase = {0};
#pragma omp parallel num_threads(threads)
  product(&phase, matrix, in, rows, out, STORE);
}

// query, out [rows, heads, head_dim]; caches [num_slots, key_heads, head_dim]. 0, or 1 when memory runs out.
int drawloom_attend(const Heads *heads, const Batch *batch, const float *query, const float *keys, const float *values, float *out, int threads) {
  Phase phase = {0};
  const Tiles tiles = tiles_of(heads, batch, threads);
  if (tiles_failed(&tiles)) return free_tiles(&tiles), 1;
#pragma omp parallel num_threads(threads)
  attend_rows(&phase, heads, batch, &tiles, query, heads->heads * heads->head_dim, keys, values, out);
  return free_tiles(&tiles), 0;
}

// Size in bytes of a packed matrix.
int64_t drawloom_packed_bytes(int64_t outputs, int64_t inputs, int format) {
  return (outputs + NR - 1) / NR * panel_bytes(format, inputs);
}

// Pack weight [outputs, inputs]; 1 when every bit of every value can be had back, else 0 and the packed bytes are void.
int drawloom_pack(const float *weight, int64_t outputs, int64_t inputs, int format, char *out, int threads) {
  atomic_int exact = 1;
#pragma omp parallel for num_threads(threads)
  for (int64_t p = 0; p < (outputs + NR - 1) / NR; p++)
    if (atomic_load(&exact) && !pack_panel(format, weight + p * NR * inputs, least(NR, outputs - p * NR), inputs, out + p * panel_bytes(format, inputs)))
      atomic_store(&exact, 0);
  return exact;
}

// weight [outputs, inputs] of a packed matrix.
void drawloom_unpack(const Matrix *matrix, float *weight) {
  float values[32 * NR];
  for (int64_t p = 0; p < panels(matrix); p++)
    for (int64_t k = 0; k < matrix->inputs; k += 32) {
      const char *panel = (const char *)matrix->panels + p * panel_bytes((int)matrix->format, matrix->inputs);
      const int64_t num = least(32, matrix->inputs - k);
      if (matrix->format == F32)
        memcpy(values, (const float *)panel + k * NR, (size_t)num * NR * 4);
      else
        decode_by_format((int)matrix->format, panel, k, k + num, values);
      for (int64_t i = 0; i < least(NR, matrix->outputs - p * NR); i++)
        for (int64_t j = 0; j < num; j++) weight[(p * NR + i) * matrix->inputs + k + j] = values[j * NR + i];
    }
}

// token [rows] drawn from choice [rows, vocabulary] (temperature 0: argmax), logprob [rows] of it under softmax of logits.
void drawloom_pick(const float *logits, const float *choice, int64_t rows, int64_t vocabulary, const float *temperature, const int64_t *seed, const int64_t *sample, const int64_t *position, int64_t *token, float *logprob, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t r = 0; r < rows; r++) {
    const float *x = logits + r * vocabulary, *y = choice + r * vocabulary;
    const int warm = temperature && temperature[r] > 0;
    token[r] = warm ? draw_token(y, vocabulary, temperature[r], (uint64_t)seed[r], (uint64_t)sample[r], (uint64_t)position[r]) : argmax(y, vocabulary);
    logprob[r] = x[token[r]] - log_sum_exp(x, vocabulary);
  }
}
