// Attention of ragged rows over paged keys, one row and one key head at a time. Keys a row may not see are never read.
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

// Scores of one query head against num visible keys, padded with -inf to a multiple of 8; returns the largest, or the sink if that is larger.
INLINE float score(const float *q, const float *keys, int64_t stride, int D, const int64_t *slots, int64_t num, const Heads *h, float sink, float *scores) {
  v8 top = (v8){0} + sink;
  for (int64_t first = 0; first < num; first += 8) {
    const float *key[8];
    for (int i = 0; i < 8; i++) key[i] = keys + slots[first + i < num ? first + i : num - 1] * stride;
    v8 dot[8];
    UNROLL for (int i = 0; i < 8; i++) dot[i] = (v8){0};
    for (int d = 0; d < D; d += 8) {
      const v8 part = AT(q + d);
      UNROLL for (int i = 0; i < 8; i++) dot[i] += part * AT(key[i] + d);
    }
    v8 found = sums_of(dot) * h->scale;
    if (h->softcap > 0)
      for (int i = 0; i < 8; i++) found[i] = tanhf(found[i] / h->softcap) * h->softcap;
    for (int64_t i = num - first; i < 8; i++) found[i] = -INFINITY;
    AT(scores + first) = found;
    top = pick(found > top, found, top);
  }
  for (int i = 1; i < 8; i++) top[0] = top[i] > top[0] ? top[i] : top[0];
  return top[0];
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

// out [D] = weights times values / total
INLINE void mix(const float *values, int64_t stride, int D, const int64_t *slots, int64_t num, const float *weights, float total, float *out) {
  for (int from = 0; from < D; from += 64) {  // 64 sums fit into registers
    const int parts = (D - from < 64 ? D - from : 64) / 8;
    v8 sum[8];
    UNROLL for (int d = 0; d < 8; d++) sum[d] = (v8){0};
    for (int64_t i = 0; i < num; i++) {
      const float *value = values + slots[i] * stride + from;
      if (parts == 8) {
        UNROLL for (int d = 0; d < 8; d++) sum[d] += AT(value + d * 8) * weights[i];
      } else {
        for (int d = 0; d < parts; d++) sum[d] += AT(value + d * 8) * weights[i];
      }
    }
    for (int d = 0; d < parts; d++) AT(out + from + d * 8) = sum[d] / total;
  }
}

INLINE void attend_head(int D, const Heads *h, const float *q, int64_t g, const float *keys, const float *values, const int64_t *slots, int64_t num, float *scores, float *out) {
  const int64_t group = h->heads / h->key_heads, stride = h->key_heads * h->head_dim;
  for (int64_t i = g * group; i < (g + 1) * group; i++) {
    const float sink = h->sinks ? h->sinks[i] : -INFINITY;
    const float top = score(q + i * D, keys + g * D, stride, D, slots, num, h, sink, scores), total = weigh(num, top, sink, scores);
    mix(values + g * D, stride, D, slots, num, scores, total, out + i * D);
  }
}

// Query heads of key head g of one row: q and out [heads, head_dim]; head_dim is a multiple of 8.
static void attend_row(const Heads *h, const float *q, int64_t g, const float *keys, const float *values, const int64_t *slots, int64_t num, float *scores, float *out) {
  switch (h->head_dim) {
    case 64: attend_head(64, h, q, g, keys, values, slots, num, scores, out); break;
    case 128: attend_head(128, h, q, g, keys, values, slots, num, scores, out); break;
    default: attend_head((int)h->head_dim, h, q, g, keys, values, slots, num, scores, out);
  }
}
