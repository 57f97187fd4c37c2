"""Compile and load the CPU kernels (native.c and its headers) with the system's C compiler, once per machine and source version.

The library is kept in the user's cache folder under a name derived from source, flags, compiler and processor. Where it cannot be
built, `why_not` says why and the torch paths run; callers report which one they got.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from drawloom.errors import SettingError

SOURCES = ("native.c", "native_matmul.h", "native_attention.h", "native_pack.h", "native_pick.h", "native_suffix.h")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


class CMatrix(Structure):
    _fields_ = (("outputs", c_int64), ("inputs", c_int64), ("format", c_int64), ("panels", c_void_p), ("bias", c_void_p))


class CBatch(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("rows", "sequences", "page_tokens", "pages_width", "ancestor_words")),
        *((name, c_void_p) for name in ("positions", "slots", "see", "ancestors", "row_starts", "prefix_lens", "pages", "owner")),
    )


class CHeads(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("heads", "key_heads", "head_dim", "window")),
        *(("scale", c_float), ("softcap", c_float), ("sinks", c_void_p)),
    )


class CLayer(Structure):
    _fields_ = (
        *((name, CMatrix) for name in ("qkv", "out", "gate", "up", "down")),
        *((name, c_void_p) for name in ("norm_in", "norm_mid", "norm_q", "norm_k", "keys", "values")),
        ("heads", CHeads),
    )


class CStack(Structure):
    _fields_ = (("num_layers", c_int64), ("width", c_int64), ("eps", c_float), ("layers", POINTER(CLayer)), ("norm_out", c_void_p))


class CAutomaton(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("room", "table_mask")),
        *((name, c_void_p) for name in ("sizes", "length", "link", "count", "best", "head")),
        *((name, c_void_p) for name in ("edge_from", "edge_token", "edge_to", "edge_next", "table")),
    )


SIGNATURES = {
    "drawloom_layers": ([POINTER(CStack), POINTER(CBatch), c_void_p, c_void_p, c_void_p, c_int], c_int),
    "drawloom_linear": ([POINTER(CMatrix), c_void_p, c_int64, c_void_p, c_int], None),
    "drawloom_attend": ([POINTER(CHeads), POINTER(CBatch), c_void_p, c_void_p, c_void_p, c_void_p, c_int], c_int),
    "drawloom_pick": ([c_void_p, c_void_p, c_int64, c_int64, *[c_void_p] * 6, c_int], None),
    "drawloom_packed_bytes": ([c_int64, c_int64, c_int], c_int64),
    "drawloom_pack": ([c_void_p, c_int64, c_int64, c_int, c_void_p, c_int], c_int),
    "drawloom_suffix_add": ([POINTER(CAutomaton), c_void_p, c_void_p, c_int64, c_int64, c_void_p], c_int64),
    "drawloom_suffix_draft": (
        [POINTER(CAutomaton), c_void_p, c_void_p, c_int64, c_int64, c_int64, c_double, c_void_p, c_void_p, c_void_p],
        None,
    ),
    "drawloom_unpack": ([POINTER(CMatrix), c_void_p], None),
}


def library() -> ctypes.CDLL:
    """The loaded kernels. Raises SettingError with the reason when they cannot be had here."""
    loaded = _load()
    if isinstance(loaded, str):
        raise SettingError(f"the CPU kernels cannot run here: {loaded}; install a C compiler with OpenMP, or use the torch path")
    return loaded


def why_not() -> str:
    """Why the kernels cannot run here, or "" when they can."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else ""


def address(tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> int | None:
    """The memory of a contiguous CPU tensor of that dtype, for a kernel argument; the caller keeps the tensor alive."""
    if tensor is None:
        return None
    assert tensor.dtype == dtype, f"{tensor.dtype} is not {dtype}"
    assert tensor.is_contiguous() and not tensor.is_cuda, "kernels take contiguous CPU tensors"  # noqa: PT018
    return tensor.data_ptr()


@cache
def _load() -> ctypes.CDLL | str:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "no C compiler (cc, gcc or clang) on the path"
    try:
        loaded = ctypes.CDLL(str(_built(compiler)))
    except subprocess.CalledProcessError as error:
        return f"{compiler} failed: {error.stderr.strip()[-300:]}"
    except OSError as error:
        return str(error)
    for name, (arguments, result) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


def _built(compiler: str) -> Path:
    """The library file, compiled into a scratch file first and then renamed: several processes may do this at once."""
    here = Path(__file__).parent
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256("\0".join([version, _processor(), *FLAGS]).encode())
    for name in SOURCES:
        key.update((here / name).read_bytes())
    target = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drawloom" / f"native-{key.hexdigest()[:16]}.so"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / "native.so"
            subprocess.run([compiler, *FLAGS, str(here / "native.c"), "-o", str(made), "-lm"], capture_output=True, text=True, check=True)
            made.rename(target)
    return target


def _processor() -> str:
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
