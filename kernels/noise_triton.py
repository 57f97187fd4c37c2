"""The noise of kernels/noise.py inside Triton kernels."""
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def gumbel_tile(seed, sample, position, first, purpose, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Gumbel noise [ROWS, 4 * WORDS] float32 of rows with seed, sample, position [ROWS, 1] int64 for tokens from `first` on, a multiple
    of 4: four neighbours share one call of the generator. purpose: as in the reference, + 8 * index."""
    block = (first // 4 + tl.arange(0, WORDS))[None, :]
    zero = tl.zeros([ROWS, WORDS], tl.int32)
    w0, w1, w2, w3 = tl.philox(
        seed + zero,
        (block + zero).to(tl.uint32, bitcast=True),
        (position + zero).to(tl.uint32),
        (sample + zero).to(tl.uint32),
        (zero + purpose).to(tl.uint32, bitcast=True),
    )
    even, odd = tl.join(_to_gumbel(w0), _to_gumbel(w2)), tl.join(_to_gumbel(w1), _to_gumbel(w3))
    return tl.reshape(tl.join(even, odd), [ROWS, 4 * WORDS])


@triton.jit
def _to_gumbel(word):
    """-log(-log(1 - u)) of u = (word + 1/2) / 2^32, below 1; a short series where 1 - u would lose u."""
    u = tl.minimum((word.to(tl.float32) + 0.5) * (1.0 / 4294967296.0), 1.0 - 1.0 / 16777216.0)
    small = u * (1.0 + u * (0.5 + u * (1.0 / 3.0 + u * (0.25 + u * 0.2))))
    return -tl.log(tl.where(u < 0.015625, small, -tl.log(1.0 - u)))
