"""A stack of decoder layers of the common shape, on CPU, in one call: torch reference, native kernel.

The shape (Llama, Mistral, Qwen2, Qwen3): x += W_out attend(rope(W_qkv norm(x)));  x += W_down (silu(W_gate norm(x)) * (W_up norm(x))),
with RMS norms, optional biases on queries, keys and values, and optional norms of each query and key head before rope.
R rows, C model width, H query heads, G key heads, D head size.
"""

import ctypes
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drawloom.kernels.attention import Rows, Scoring, attend_reference
from drawloom.kernels.attention_native import batch_of, heads_of
from drawloom.kernels.kv import write_rows
from drawloom.kernels.matmul import Packed, linear_reference
from drawloom.kernels.native import CLayer, CStack, address, library


@dataclass(frozen=True)
class Layer:
    """Weights of one layer. qkv is [(H + 2 G) D, C]; norms are [C], head norms [D]."""

    qkv: Packed
    out: Packed
    gate: Packed
    up: Packed
    down: Packed
    norm_in: Tensor
    norm_mid: Tensor
    norm_q: Tensor | None
    norm_k: Tensor | None
    num_heads: int
    scoring: Scoring


@dataclass(frozen=True)
class Stack:
    """Layers with their caches [num_slots, G, D] and the norm after the last of them, if there is one."""

    layers: list[Layer]
    keys: list[Tensor]
    values: list[Tensor]
    norm_out: Tensor | None
    eps: float
    native: Any  # CStack over the same tensors


def stack_of(layers: list[Layer], keys: list[Tensor], values: list[Tensor], norm_out: Tensor | None, eps: float) -> Stack:
    """Bind layers to caches. The tensors stay the caller's and must not move."""
    built = (CLayer * len(layers))()
    for slot, layer, key, value in zip(built, layers, keys, values, strict=True):
        for name in ("qkv", "out", "gate", "up", "down"):
            setattr(slot, name, getattr(layer, name).matrix)
        for name in ("norm_in", "norm_mid", "norm_q", "norm_k"):
            setattr(slot, name, address(getattr(layer, name)))
        slot.keys, slot.values = address(key), address(value)
        slot.heads = heads_of(layer.num_heads, key, layer.scoring)
    native = CStack(len(layers), layers[0].norm_in.numel(), eps, ctypes.cast(built, ctypes.POINTER(CLayer)), address(norm_out))
    return Stack(layers, keys, values, norm_out, eps, native)


def run_layers_reference(hidden: Tensor, stack: Stack, rows: Rows, slots: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """hidden [R, C], angles (cos, sin) [R, D] -> normed hidden [R, C]; every row's K/V goes to its slot."""
    for layer, keys, values in zip(stack.layers, stack.keys, stack.values, strict=True):
        num_heads, (num_keys, size) = layer.num_heads, keys.shape[1:]
        qkv = linear_reference(_norm(hidden, layer.norm_in, stack.eps), layer.qkv)
        query, key, value = qkv.view(len(hidden), -1, size).split([num_heads, num_keys, num_keys], 1)
        query, key = _norm(query, layer.norm_q, stack.eps), _norm(key, layer.norm_k, stack.eps)
        write_rows(_rotate(key, *angles), value, keys, values, slots)
        mixed = attend_reference(_rotate(query, *angles), keys, values, rows, layer.scoring)
        hidden = hidden + linear_reference(mixed.flatten(1), layer.out)
        normed = _norm(hidden, layer.norm_mid, stack.eps)
        inner = torch.nn.functional.silu(linear_reference(normed, layer.gate)) * linear_reference(normed, layer.up)
        hidden = hidden + linear_reference(inner, layer.down)
    return _norm(hidden, stack.norm_out, stack.eps)


def run_layers(hidden: Tensor, stack: Stack, rows: Rows, slots: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """As run_layers_reference, by the native kernel; `hidden` is changed in place and returned. A row's result is bit for bit the same
    alone, beside other rows, and however its text was cut into steps."""
    batch = batch_of(rows, slots)
    failed = library().drawloom_layers(
        byref(stack.native), byref(batch), address(angles[0]), address(angles[1]), address(hidden), torch.get_num_threads()
    )
    if failed:
        raise MemoryError(f"no memory for the activations of {len(hidden)} rows; lower the rows of a step")
    return hidden


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """x [R, heads, D] by angles [R, D]."""
    first, second = x.chunk(2, -1)
    return x * cosines[:, None] + torch.cat([-second, first], -1) * sines[:, None]
