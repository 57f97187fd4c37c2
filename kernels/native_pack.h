// Finding the integers behind float32 weights that came from a quantised file, and refusing when a single bit would differ.
#pragma once
#include <math.h>
#include "native_matmul.h"

INLINE float through_half(float x) { return (float)(_Float16)x; }

INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

// 32 weights = q * d + m with 4-bit q: Q4_1 stores the smallest weight as m and (largest - smallest) / 15 as d, both in half precision.
static int find_q4(const float *w, float *d, float *m, int32_t q[32]) {
  float low = w[0], high = w[0];
  for (int k = 1; k < 32; k++) low = fminf(low, w[k]), high = fmaxf(high, w[k]);
  *m = through_half(low), *d = through_half((high - low) / 15.0f);
  const float inverse = *d > 0 ? 1.0f / *d : 0.0f;
  for (int k = 0; k < 32; k++) {
    q[k] = (int32_t)fminf(fmaxf(rintf((w[k] - *m) * inverse), 0.0f), 15.0f);
    if (bits_of(fmaf((float)q[k], *d, *m)) != bits_of(w[k])) return 0;
  }
  return 1;
}

// 32 weights = q * d with 8-bit q: Q8_0 stores (largest magnitude) / 127 as d in half precision.
static int find_q8(const float *w, float *d, int32_t q[32]) {
  float top = 0;
  for (int k = 0; k < 32; k++) top = fmaxf(top, fabsf(w[k]));
  *d = through_half(top / 127.0f);
  const float inverse = *d > 0 ? 1.0f / *d : 0.0f;
  for (int k = 0; k < 32; k++) {
    q[k] = (int32_t)fminf(fmaxf(rintf(w[k] * inverse), -127.0f), 127.0f);
    if (bits_of((float)q[k] * *d) != bits_of(w[k])) return 0;
  }
  return 1;
}

// One panel of num <= NR outputs from weight [num, inputs]; missing outputs become zeros.
static int pack_panel(int format, const float *weight, int64_t num, int64_t inputs, char *out) {
  memset(out, 0, (size_t)panel_bytes(format, inputs));
  if (format == F32 || format == BF16) {
    for (int64_t i = 0; i < num; i++)
      for (int64_t k = 0; k < inputs; k++) {
        const uint32_t bits = bits_of(weight[i * inputs + k]);
        if (format == F32)
          ((uint32_t *)out)[k * NR + i] = bits;
        else if (bits & 0xffff)
          return 0;
        else
          ((uint16_t *)out)[k * NR + i] = (uint16_t)(bits >> 16);
      }
    return 1;
  }
  if (inputs % 32) return 0;
  const int per_word = format == Q8 ? 4 : 8, bits = 32 / per_word, num_scales = format == Q8 ? NR : 2 * NR;
  for (int64_t k = 0; k < inputs; k += 32) {
    float *scales = (float *)(out + k / 32 * panel_bytes(format, 32));
    uint32_t *words = (uint32_t *)(scales + num_scales);
    for (int64_t i = 0; i < num; i++) {
      int32_t q[32];
      const float *w = weight + i * inputs + k;
      if (format == Q8 ? !find_q8(w, scales + i, q) : !find_q4(w, scales + i, scales + NR + i, q)) return 0;
      for (int j = 0; j < 32; j++) words[j / per_word * NR + i] |= ((uint32_t)q[j] & ((1u << bits) - 1)) << (j % per_word * bits);
    }
  }
  return 1;
}
