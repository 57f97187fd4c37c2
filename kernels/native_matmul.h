// Matrix products with weights kept in the narrowest format that gives back every bit of their float32 values.
//
// A weight [N, K] is cut into panels of NR outputs. Inside a panel, inputs follow each other and each holds NR values:
//   F32   float   [K][NR]
//   BF16  uint16  [K][NR]                                  value = bits << 16
//   Q8    per 32 inputs: float d[NR], int8   [8][NR][4]    value = q * d
//   Q4    per 32 inputs: float d[NR], m[NR], uint4 [4][NR][8]    value = q * d + m
// Every output is the sum, in order, of one chain of fused multiply-adds for each KB inputs, whatever the number of rows, threads or
// lanes: a row's result never depends on the rows beside it. (Short chains keep the rounding error near that of a blocked BLAS.)
#pragma once
#include <stdint.h>
#include <string.h>

#define NR 16
#if defined(__AVX512F__)
#define VW 16
#define MR 12
#elif defined(__AVX__)
#define VW 8
#define MR 6
#else
#define VW 4
#define MR 4
#endif
#define NV (NR / VW)
#define KB 64
#define KC 256  // inputs decoded at a time: KC * NR floats stay in the first-level cache
#define MC 48   // rows handled per work item: their inputs stay in the second-level cache
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vf __attribute__((vector_size(VW * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VW * 4), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(VW * 2), aligned(2), may_alias));

enum { F32 = 0, BF16 = 1, Q8 = 2, Q4 = 3 };

typedef struct {
  int64_t outputs, inputs, format;
  const void *panels;
  const float *bias;  // [outputs] or null
} Matrix;

INLINE int64_t panel_bytes(int format, int64_t inputs) {
  switch (format) {
    case F32: return inputs * NR * 4;
    case BF16: return inputs * NR * 2;
    case Q8: return inputs / 32 * (NR * 4 + NR * 32);
    default: return inputs / 32 * (NR * 8 + NR * 16);
  }
}

INLINE vf widen(const uint16_t *bits) {
  vi wide = __builtin_convertvector(*(const vh *)bits, vi) << 16;
  return (vf)wide;
}

// The NR values of input k of a panel, for formats whose inputs stand alone.
INLINE void plain_values(int format, const char *panel, int64_t k, vf w[NV]) {
  UNROLL for (int v = 0; v < NV; v++)
    w[v] = format == F32 ? *(const vf *)((const float *)panel + k * NR + v * VW) : widen((const uint16_t *)panel + k * NR + v * VW);
}

// The NR values of input j of a word that packs 4 (Q8) or 8 (Q4) inputs.
INLINE void packed_values(int format, const vi q[NV], int j, const float *scales, vf w[NV]) {
  UNROLL for (int v = 0; v < NV; v++) {
    vf d = *(const vf *)(scales + v * VW);
    if (format == Q8)
      w[v] = __builtin_convertvector((q[v] << (24 - 8 * j)) >> 24, vf) * d;
    else
      w[v] = __builtin_convertvector((q[v] >> (4 * j)) & 15, vf) * d + *(const vf *)(scales + NR + v * VW);
  }
}

#define FMA_ROWS(k)                                                                  \
  UNROLL for (int m = 0; m < M; m++) {                                               \
    UNROLL for (int v = 0; v < NV; v++) acc[m][v] += a[m * lda + (k)] * w[v];        \
  }

// c [M][NR] += a [M, inputs] times inputs first..end of a panel; M and format are constants after inlining.
INLINE void tile(int format, int M, const char *panel, int64_t first, int64_t end, const float *a, int64_t lda, float *c) {
  vf acc[MR][NV], w[NV];
  for (int64_t start = first; start < end; start += KB) {
    const int64_t stop = start + KB < end ? start + KB : end;
    UNROLL for (int m = 0; m < M; m++) {
      UNROLL for (int v = 0; v < NV; v++) acc[m][v] = (vf){0};
    }
    if (format == F32 || format == BF16) {
      for (int64_t k = start; k < stop; k++) {
        plain_values(format, panel, k, w);
        FMA_ROWS(k)
      }
    } else {
      const int per_word = format == Q8 ? 4 : 8, num_scales = format == Q8 ? NR : 2 * NR;
      for (int64_t k = start; k < stop; k += 32) {
        const float *scales = (const float *)(panel + k / 32 * panel_bytes(format, 32));
        for (int part = 0; part < 32 / per_word; part++) {
          vi q[NV];
          UNROLL for (int v = 0; v < NV; v++) q[v] = *(const vi *)((const int32_t *)scales + num_scales + part * NR + v * VW);
          UNROLL for (int j = 0; j < per_word; j++) {
            packed_values(format, q, j, scales, w);
            FMA_ROWS(k + part * per_word + j)
          }
        }
      }
    }
    UNROLL for (int m = 0; m < M; m++) {
      UNROLL for (int v = 0; v < NV; v++) *(vf *)(c + m * NR + v * VW) += acc[m][v];
    }
  }
}

typedef void TileProduct(const char *panel, int64_t first, int64_t end, const float *a, int64_t lda, float *c);
#define ONE(F, M)                                                                                                       \
  static void tile_##F##_##M(const char *panel, int64_t first, int64_t end, const float *a, int64_t lda, float *c) { \
    tile(F, M, panel, first, end, a, lda, c);                                                                          \
  }
#define FEW(F) ONE(F, 1) ONE(F, 2) ONE(F, 3) ONE(F, 4)
#define FEW_OF(F) tile_##F##_1, tile_##F##_2, tile_##F##_3, tile_##F##_4
FEW(F32)
FEW(BF16)
FEW(Q8)
FEW(Q4)
static TileProduct *const FEW_TILES[4][4] = {{FEW_OF(F32)}, {FEW_OF(BF16)}, {FEW_OF(Q8)}, {FEW_OF(Q4)}};  // [format][rows - 1]
#if MR > 4
ONE(F32, 5) ONE(F32, 6)
#endif
#if MR > 6
ONE(F32, 7) ONE(F32, 8) ONE(F32, 9) ONE(F32, 10) ONE(F32, 11) ONE(F32, 12)
#endif
static TileProduct *const TILES[MR] = {FEW_OF(F32),  // [rows - 1]
#if MR > 4
                                tile_F32_5, tile_F32_6,
#endif
#if MR > 6
                                tile_F32_7, tile_F32_8, tile_F32_9, tile_F32_10, tile_F32_11, tile_F32_12
#endif
};

// Inputs first..end of a panel as float [end - first][NR].
INLINE void decode(int format, const char *panel, int64_t first, int64_t end, float *out) {
  vf w[NV];
  if (format == BF16) {
    for (int64_t k = first; k < end; k++) {
      plain_values(format, panel, k, w);
      UNROLL for (int v = 0; v < NV; v++) *(vf *)(out + (k - first) * NR + v * VW) = w[v];
    }
    return;
  }
  const int per_word = format == Q8 ? 4 : 8, num_scales = format == Q8 ? NR : 2 * NR;
  for (int64_t k = first; k < end; k += 32) {
    const float *scales = (const float *)(panel + k / 32 * panel_bytes(format, 32));
    const int32_t *words = (const int32_t *)(scales + num_scales);
    for (int part = 0; part < 32 / per_word; part++) {
      vi q[NV];
      UNROLL for (int v = 0; v < NV; v++) q[v] = *(const vi *)(words + part * NR + v * VW);
      UNROLL for (int j = 0; j < per_word; j++) {
        packed_values(format, q, j, scales, w);
        UNROLL for (int v = 0; v < NV; v++) *(vf *)(out + (k - first + part * per_word + j) * NR + v * VW) = w[v];
      }
    }
  }
}

static void decode_by_format(int format, const char *panel, int64_t first, int64_t end, float *out) {
  switch (format) {
    case BF16: decode(BF16, panel, first, end, out); break;
    case Q8: decode(Q8, panel, first, end, out); break;
    default: decode(Q4, panel, first, end, out);
  }
}

// c [num][NR] = a [num, inputs] times panel p; num <= MC. A few rows take values as they are decoded; more share a decoded buffer.
static void panel_product(const Matrix *matrix, int64_t p, const float *a, int64_t lda, int num, float *c) {
  const int format = (int)matrix->format, tiles = (num + MR - 1) / MR;
  const int64_t inputs = matrix->inputs;
  const char *panel = (const char *)matrix->panels + p * panel_bytes(format, inputs);
  memset(c, 0, (size_t)num * NR * 4);
  if (num <= 4) {
    FEW_TILES[format][num - 1](panel, 0, inputs, a, lda, c);
    return;
  }
  float buffer[KC * NR] __attribute__((aligned(64)));
  for (int64_t first = 0; first < inputs; first += KC) {
    const int64_t end = first + KC < inputs ? first + KC : inputs;
    const float *values = (const float *)panel + first * NR;
    if (format != F32) {
      decode_by_format(format, panel, first, end, buffer);
      values = buffer;
    }
    for (int t = 0, row = 0; t < tiles; t++) {
      const int take = (num - row + tiles - t - 1) / (tiles - t);
      TILES[take - 1]((const char *)values, 0, end - first, a + row * lda + first, lda, c + row * NR);
      row += take;
    }
  }
}
