// Attention of ragged rows over paged keys, a few rows and one key head at a time. Keys a row may not see are never read for it.
// Sums over keys run over the visible ones in order: a row's result never depends on other rows, pages or hidden keys.
#pragma once
#include <math.h>
#include "native_matmul.h"

typedef struct {
  int64_t rows, sequences, page_tokens, pages_width, ancestor_words;
  const int64_t *positions, *slots;  // [rows]
  const int32_t *see;                // [rows]
  const int64_t *ancestors;          // [rows, ancestor_words] or null
  const int32_t *row_starts;         // [sequences + 1]
  const int32_t *prefix_lens;        // [sequences]
  const int32_t *pages;              // [sequences, pages_width]
  const int32_t *owner;              // [rows] sequence of each row
} Batch;

typedef struct {
  int64_t heads, key_heads, head_dim, window;  // window 0: none
  float scale, softcap;                        // softcap 0: none
  const float *sinks;                          // [heads] or null
} Heads;

typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8 __attribute__((vector_size(32), aligned(4), may_alias));
#define AT(pointer) (*(v8 *)(pointer))

INLINE v8 pick(i8 where, v8 yes, v8 no) { return (v8)(((i8)yes & where) | ((i8)no & ~where)); }

// e^x for x <= 0 or moderate, within 2 units in the last place; Cephes' reduction and polynomial.
INLINE v8 vexp(v8 x) {
  x = pick(x > -87.3f, x, (v8){0} - 87.3f);
  x = pick(x < 88.3f, x, (v8){0} + 88.3f);
  v8 n = x * 1.44269504088896341f + 12582912.0f;
  n = n - 12582912.0f;
  v8 r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  v8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  i8 power = (__builtin_convertvector(n, i8) + 127) << 23;
  return p * (v8)power;
}

// Lane i is the sum of the lanes of x[i], always in the same order.
INLINE v8 sums_of(const v8 x[8]) {
  const i8 even = {0, 2, 8, 10, 4, 6, 12, 14}, odd = {1, 3, 9, 11, 5, 7, 13, 15};
  const i8 low = {0, 1, 2, 3, 8, 9, 10, 11}, high = {4, 5, 6, 7, 12, 13, 14, 15};
  v8 pair[4], four[2];
  UNROLL for (int i = 0; i < 4; i++) pair[i] = __builtin_shuffle(x[2 * i], x[2 * i + 1], even) + __builtin_shuffle(x[2 * i], x[2 * i + 1], odd);
  UNROLL for (int i = 0; i < 2; i++) four[i] = __builtin_shuffle(pair[2 * i], pair[2 * i + 1], even) + __builtin_shuffle(pair[2 * i], pair[2 * i + 1], odd);
  return __builtin_shuffle(four[0], four[1], low) + __builtin_shuffle(four[0], four[1], high);
}

INLINE float hsum(v8 x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

INLINE int64_t slot_of(const Batch *batch, int64_t sequence, int64_t index) {
  return (int64_t)batch->pages[sequence * batch->pages_width + index / batch->page_tokens] * batch->page_tokens + index % batch->page_tokens;
}

// Slots that row r sees, in order; returns how many.
static int64_t visible_slots(const Batch *batch, int64_t r, int64_t window, int64_t *slots) {
  const int64_t s = batch->owner[r], prefix = batch->prefix_lens[s], start = batch->row_starts[s];
  const int64_t oldest = window ? batch->positions[r] - window + 1 : 0;
  int64_t num = 0;
  for (int64_t i = oldest > 0 ? oldest : 0; i < prefix;) {
    int64_t slot = slot_of(batch, s, i), stop = i - i % batch->page_tokens + batch->page_tokens;
    for (stop = stop < prefix ? stop : prefix; i < stop; i++) slots[num++] = slot++;
  }
  const int64_t *bits = batch->ancestors ? batch->ancestors + r * batch->ancestor_words : 0;
  for (int64_t j = 0; j < batch->see[r] && start + j < batch->row_starts[s + 1]; j++) {
    if (bits && !(((uint64_t)bits[j / 64] >> (j % 64)) & 1)) continue;
    if (window && batch->positions[start + j] < oldest) continue;
    slots[num++] = slot_of(batch, s, prefix + j);
  }
  return num;
}

#define KEYS 64  // keys handled at a time: they stay in the first-level cache for all query heads of a tile

// Scores of one query head against visible keys first..end, -inf up to a multiple of 8; returns the largest of them and of top.
INLINE float score(const float *q, const float *keys, int64_t stride, int D, const int64_t *slots, int64_t first, int64_t end, const Heads *h, float top, float *scores) {
  v8 largest = (v8){0} + top;
  for (; first < end; first += 8) {
    const float *key[8];
    for (int i = 0; i < 8; i++) key[i] = keys + slots[first + i < end ? first + i : end - 1] * stride;
    v8 dot[8];
    UNROLL for (int i = 0; i < 8; i++) dot[i] = (v8){0};
    for (int d = 0; d < D; d += 8) {
      const v8 part = AT(q + d);
      UNROLL for (int i = 0; i < 8; i++) dot[i] += part * AT(key[i] + d);
    }
    v8 found = sums_of(dot) * h->scale;
    if (h->softcap > 0)
      for (int i = 0; i < 8; i++) found[i] = tanhf(found[i] / h->softcap) * h->softcap;
    for (int64_t i = end - first; i < 8; i++) found[i] = -INFINITY;
    AT(scores + first) = found;
    largest = pick(found > largest, found, largest);
  }
  for (int i = 1; i < 8; i++) largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
  return largest[0];
}

// Scores become weights e^(score - top), zero in the padding; returns their sum, the sink's weight included.
INLINE float weigh(int64_t num, float top, float sink, float *scores) {
  v8 total = {0};
  for (int64_t first = 0; first < num; first += 8) {
    v8 weight = vexp(AT(scores + first) - top);
    for (int64_t i = num - first; i < 8; i++) weight[i] = 0;
    AT(scores + first) = weight;
    total += weight;
  }
  return hsum(total) + (sink > -INFINITY ? expf(sink - top) : 0.0f);
}

// out [D] += weights times values of visible keys first..end
INLINE void mix(const float *values, int64_t stride, int D, const int64_t *slots, int64_t first, int64_t end, const float *weights, float *out) {
  for (int from = 0; from < D; from += 64) {  // 64 sums fit into registers
    const int parts = (D - from < 64 ? D - from : 64) / 8;
    v8 sum[8];
    for (int d = 0; d < parts; d++) sum[d] = AT(out + from + d * 8);
    for (int64_t i = first; i < end; i++) {
      const float *value = values + slots[i] * stride + from;
      if (parts == 8) {
        UNROLL for (int d = 0; d < 8; d++) sum[d] += AT(value + d * 8) * weights[i];
      } else {
        for (int d = 0; d < parts; d++) sum[d] += AT(value + d * 8) * weights[i];
      }
    }
    for (int d = 0; d < parts; d++) AT(out + from + d * 8) = sum[d];
  }
}

#define TILE_HEADS 16  // query heads of a tile, over its rows
INLINE int64_t rows_per_tile(const Heads *h) { return TILE_HEADS * h->key_heads / h->heads > 1 ? TILE_HEADS * h->key_heads / h->heads : 1; }

typedef struct {
  const float *q;  // [heads, head_dim] of the first row
  float *out;
  int64_t q_stride, num_rows, num[TILE_HEADS];  // visible keys of each row: the first num of the slots
} Tile;

// A tile's query heads that share key head g; scores holds `width` floats for each.
INLINE void attend_tile(int D, const Heads *h, const Tile *t, int64_t g, const float *keys, const float *values, const int64_t *slots, int64_t width, float *scores) {
  const int64_t group = h->heads / h->key_heads, stride = h->key_heads * h->head_dim, pairs = t->num_rows * group;
  float top[pairs], total[pairs];
  int64_t longest = 0;
  for (int64_t r = 0; r < t->num_rows; r++) longest = t->num[r] > longest ? t->num[r] : longest;
  for (int64_t i = 0; i < pairs; i++) top[i] = h->sinks ? h->sinks[g * group + i % group] : -INFINITY;
  for (int64_t first = 0; first < longest; first += KEYS)
    for (int64_t i = 0; i < pairs; i++) {
      const int64_t num = t->num[i / group], end = first + KEYS < num ? first + KEYS : num;
      const float *q = t->q + i / group * t->q_stride + (g * group + i % group) * D;
      top[i] = score(q, keys + g * D, stride, D, slots, first, end, h, top[i], scores + i * width);
    }
  for (int64_t i = 0; i < pairs; i++) {
    total[i] = weigh(t->num[i / group], top[i], h->sinks ? h->sinks[g * group + i % group] : -INFINITY, scores + i * width);
    memset(t->out + (i / group * h->heads + g * group + i % group) * D, 0, (size_t)D * 4);
  }
  for (int64_t first = 0; first < longest; first += KEYS)
    for (int64_t i = 0; i < pairs; i++) {
      const int64_t num = t->num[i / group], end = first + KEYS < num ? first + KEYS : num;
      mix(values + g * D, stride, D, slots, first, end, scores + i * width, t->out + (i / group * h->heads + g * group + i % group) * D);
    }
  for (int64_t i = 0; i < pairs; i++) {
    float *out = t->out + (i / group * h->heads + g * group + i % group) * D;
    for (int d = 0; d < D; d += 8) AT(out + d) = AT(out + d) / total[i];
  }
}

// head_dim is a multiple of 8.
static void attend_heads(const Heads *h, const Tile *t, int64_t g, const float *keys, const float *values, const int64_t *slots, int64_t width, float *scores) {
  switch (h->head_dim) {
    case 64: attend_tile(64, h, t, g, keys, values, slots, width, scores); break;
    case 128: attend_tile(128, h, t, g, keys, values, slots, width, scores); break;
    default: attend_tile((int)h->head_dim, h, t, g, keys, values, slots, width, scores);
  }
}
