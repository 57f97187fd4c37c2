// One token a row: argmax, or the Gumbel-max draw whose noise is Philox 4x32-10 keyed by (seed, sample, position, token), and the
// log-probability of the token. Noise is computed in full only where an upper bound of it could win; see kernels/noise.py, kernels/pick.py.
#pragma once
#include <math.h>
#include "native_attention.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define CALLS 32           // Philox calls at once, each gives the words of four tokens
#define LANES (VW / 2)     // calls in one vector
#define VECTORS (CALLS / LANES)

typedef uint64_t vq __attribute__((vector_size(VW * 4)));

// 64-bit products of the low halves
INLINE vq product_of(vq a, uint32_t b) {
#if defined(__AVX512F__)
  return (vq)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64((long long)b));
#elif defined(__AVX2__)
  return (vq)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x((long long)b));
#else
  return (a & 0xFFFFFFFFu) * b;
#endif
}

// The words of tokens 4 * first .. 4 * (first + CALLS) - 1, in order.
static void philox_words(uint64_t first, uint64_t seed, uint64_t sample, uint64_t position, uint32_t words[4 * CALLS]) {
  vq c[4][VECTORS];
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  UNROLL for (int v = 0; v < VECTORS; v++) {
    for (int i = 0; i < LANES; i++) c[0][v][i] = (uint32_t)(first + (uint64_t)(v * LANES + i));
    c[1][v] = (vq){0} + (uint32_t)position, c[2][v] = (vq){0} + (uint32_t)sample, c[3][v] = (vq){0};
  }
  for (int round = 0; round < 10; round++) {
    UNROLL for (int v = 0; v < VECTORS; v++) {
      const vq p0 = product_of(c[0][v], 0xD2511F53u), p1 = product_of(c[2][v], 0xCD9E8D57u);
      c[0][v] = (p1 >> 32) ^ c[1][v] ^ k0, c[1][v] = p1;
      c[2][v] = (p0 >> 32) ^ c[3][v] ^ k1, c[3][v] = p0;
    }
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < CALLS; i++)
    for (int w = 0; w < 4; w++) words[4 * i + w] = (uint32_t)((const uint64_t *)c[w])[i];
}

INLINE float gumbel_of(uint32_t word) {
  const float uniform = fminf(((float)word + 0.5f) * 0x1p-32f, 1.0f - 0x1p-24f);
  return -logf(-log1pf(-uniform));
}

// No noise of these words exceeds this: -log(-log(1 - v)) <= -log v, and v >= 2 to the exponent of its float.
INLINE vf gumbel_bounds(const uint32_t *words) {
  const vi half = *(const vi *)words >> 1 & 0x7FFFFFFF;
  const vi exponent = (vi)(__builtin_convertvector(half, vf) + 0.25f) >> 23;
  return __builtin_convertvector(31 + 127 - exponent, vf) * 0.69314718f + 1e-3f;
}

// argmax of x[i] / temperature + noise; the lowest index among equals
static int64_t draw_token(const float *x, int64_t num, float temperature, uint64_t seed, uint64_t sample, uint64_t position) {
  uint32_t words[4 * CALLS] __attribute__((aligned(64)));
  float most[4 * CALLS] __attribute__((aligned(64))), best = -INFINITY;
  int64_t token = 0;
  for (int64_t first = 0; first < num; first += 4 * CALLS) {
    const int64_t width = num - first < 4 * CALLS ? num - first : 4 * CALLS;
    philox_words((uint64_t)first / 4, seed, sample, position, words);
    vi some = {0};
    for (int64_t i = 0; i + VW <= width; i += VW) {
      const vf reach = *(const vf *)(x + first + i) / temperature + gumbel_bounds(words + i);
      *(vf *)(most + i) = reach, some |= reach > best;
    }
    for (int64_t i = width / VW * VW; i < width; i++) most[i] = INFINITY, some[0] = -1;
    int any = 0;
    for (int i = 0; i < VW; i++) any |= some[i];
    if (!any) continue;
    for (int64_t i = 0; i < width; i++) {
      if (!(most[i] > best)) continue;
      const float value = x[first + i] / temperature + gumbel_of(words[i]);
      if (value > best) best = value, token = first + i;
    }
  }
  return token;
}

INLINE float largest(const float *x, int64_t num) {
  float top = -INFINITY;
  for (int64_t i = 0; i < num; i++) top = x[i] > top ? x[i] : top;
  return top;
}

static int64_t argmax(const float *x, int64_t num) {
  const float top = largest(x, num);
  for (int64_t i = 0; i < num; i++)
    if (x[i] == top) return i;
  return 0;
}

static float log_sum_exp(const float *x, int64_t num) {
  const float top = largest(x, num);
  vf sums = {0};
  int64_t i = 0;
  for (; i + VW <= num; i += VW) sums += vexp(*(const vf *)(x + i) - top);
  float total = hsum(sums);
  for (; i < num; i++) total += expf(x[i] - top);
  return top + logf(total);
}
