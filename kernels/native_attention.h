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

INLINE vf pick(vi where, vf yes, vf no) { return (vf)(((vi)yes & where) | ((vi)no & ~where)); }

// e^x for x <= 0 or moderate, within 2 units in the last place; Cephes' reduction and polynomial.
INLINE vf vexp(vf x) {
  x = pick(x > -87.3f, x, (vf){0} - 87.3f);
  x = pick(x < 88.3f, x, (vf){0} + 88.3f);
  vf n = x * 1.44269504088896341f + 12582912.0f;
  n = n - 12582912.0f;
  vf r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  vi power = (__builtin_convertvector(n, vi) + 127) << 23;
  return p * (vf)power;
}

INLINE float hsum(vf x) {
  float lanes[VW], sum;
  *(vf *)lanes = x;
  for (int step = VW / 2; step > 0; step /= 2)
    for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
  sum = lanes[0];
  return sum;
}

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

// One query head against the visible keys of its key head; weights are left in scores [num].
INLINE float weigh(const float *q, const float *keys, int64_t stride, int D, const int64_t *slots, int64_t num, const Heads *h, float sink, float *scores) {
  float top = sink;
  for (int64_t i = 0; i < num; i++) {
    const float *key = keys + slots[i] * stride;
    vf sum = *(const vf *)q * *(const vf *)key;
    UNROLL for (int d = VW; d < D; d += VW) sum += *(const vf *)(q + d) * *(const vf *)(key + d);
    float score = hsum(sum) * h->scale;
    if (h->softcap > 0) score = tanhf(score / h->softcap) * h->softcap;
    scores[i] = score;
    top = score > top ? score : top;
  }
  for (int64_t i = num; i % VW; i++) scores[i] = top;
  for (int64_t i = 0; i < num; i += VW) *(vf *)(scores + i) = vexp(*(vf *)(scores + i) - top);
  float total = h->sinks ? expf(sink - top) : 0.0f;
  for (int64_t i = 0; i < num; i++) total += scores[i];
  return total;
}

INLINE void mix(const float *values, int64_t stride, int D, const int64_t *slots, int64_t num, const float *scores, float total, float *out) {
  vf sum[256 / VW];
  UNROLL for (int d = 0; d < D / VW; d++) sum[d] = (vf){0};
  for (int64_t i = 0; i < num; i++) {
    const float *value = values + slots[i] * stride;
    UNROLL for (int d = 0; d < D / VW; d++) sum[d] += *(const vf *)(value + d * VW) * scores[i];
  }
  UNROLL for (int d = 0; d < D / VW; d++) *(vf *)(out + d * VW) = sum[d] / total;
}

INLINE void attend_head(int D, const Heads *h, const float *q, int64_t g, const float *keys, const float *values, const int64_t *slots, int64_t num, float *scores, float *out) {
  const int64_t group = h->heads / h->key_heads, stride = h->key_heads * h->head_dim;
  for (int64_t i = g * group; i < (g + 1) * group; i++) {
    const float sink = h->sinks ? h->sinks[i] : -INFINITY;
    const float total = weigh(q + i * D, keys + g * D, stride, D, slots, num, h, sink, scores);
    mix(values + g * D, stride, D, slots, num, scores, total, out + i * D);
  }
}

// Query heads of key head g of one row: q and out [heads, head_dim]; head_dim is 64, 96, 128, 256, or another multiple of VW up to 256.
static void attend_row(const Heads *h, const float *q, int64_t g, const float *keys, const float *values, const int64_t *slots, int64_t num, float *scores, float *out) {
  switch (h->head_dim) {
    case 64: attend_head(64, h, q, g, keys, values, slots, num, scores, out); break;
    case 128: attend_head(128, h, q, g, keys, values, slots, num, scores, out); break;
    default: attend_head((int)h->head_dim, h, q, g, keys, values, slots, num, scores, out);
  }
}
