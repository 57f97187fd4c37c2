"""Every Triton kernel, compiled ahead of time for GPUs that need not be here: registers, spills and shared memory, from the compilers' own
reports. `python -m drawloom.kernels.compiled` writes docs/kernels.md; with --json it prints the numbers.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from drawloom.kernels import attention_triton, kv_triton, pick_triton, reveal_triton, verify_triton
from drawloom.kernels.sizes import next_power

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
HERE = Path(triton.__file__).parent / "backends/nvidia/bin"
POINTERS = {  # what a pointer argument points to; every other argument is a number
    "p_key": "x", "p_value": "x", "p_query": "x", "p_out": "x", "p_hidden": "x", "p_weight": "x", "p_new_key": "x", "p_new_value": "x",
    "p_cache": "x", "p_held": "x",
    "p_partial": "fp32", "p_stat": "fp32", "p_logits": "fp32", "p_choice": "fp32", "p_kept": "fp32", "p_logprob": "fp32", "p_p": "fp32",
    "p_q": "fp32", "p_left": "fp32", "p_temperature": "fp32", "p_cos": "fp32", "p_sin": "fp32", "p_score": "fp32", "p_sink": "fp32",
    "p_coin": "fp64",
    "p_item": "i32", "p_row": "i32", "p_pages": "i32", "p_see": "i32", "p_start": "i32", "p_prefix": "i32", "p_parts": "i32",
    "p_path": "i8", "p_valid": "i8", "p_masked": "i8", "p_chosen": "i8", "p_fall": "i8",
}  # fmt: skip
NUMBERS = {"scale": "fp32", "softcap": "fp32", "tau": "fp32"}


@dataclass(frozen=True)
class Variant:
    """A kernel with its compile-time numbers."""

    kernel: Any
    name: str
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 2
    dtype: str = "bf16"


@dataclass(frozen=True)
class Report:
    """What a compiler said."""

    kernel: str
    variant: str
    target: str
    registers: int
    spills: int  # bytes on NVIDIA, registers on AMD
    shared_bytes: int


def attention(name: str, size: int, group: int, tile: int, dtype: str = "bf16", **flags: bool) -> Variant:
    block, wide = next_power(size), next_power(group)
    constants: dict[str, Any] = {"D": size, "BD": block, "GROUP": group, "BG": wide, "BR": tile, "PAGE": 16}
    constants["BN"] = attention_triton.keys_of(block, 4 if dtype == "fp32" else 2)
    for flag in ("TREE", "WINDOW", "CAP", "SINK", "UPCAST"):
        constants[flag] = flags.get(flag, False)
    return Variant(attention_triton._attend_kernel, name, constants, attention_triton.warps_of(tile * wide, block), 2, dtype)


VARIANTS = [
    *(attention(f"head {size}, 4 rows", size, 4, 4) for size in (64, 80, 96, 128, 256)),
    *(attention(f"head {size}, 32 rows", size, 4, 32) for size in (64, 80, 96, 128)),
    attention("head 256, 16 rows", 256, 4, 16),
    attention("head 128, tree", 128, 4, 32, TREE=True),
    attention("head 128, window, soft cap, sinks", 128, 4, 32, WINDOW=True, CAP=True, SINK=True),
    attention("head 128, fp16", 128, 4, 32, "fp16"),
    attention("head 64, group 1", 64, 1, 32),
    Variant(attention_triton._add_kernel, "head 128, 16 parts", {"D": 128, "BD": 128, "BP": 16, "SINK": False}),
    Variant(pick_triton._pick_kernel, "greedy", {"BV": 4096, "NOISE": False, "CHOICE": False}, 8),
    Variant(pick_triton._pick_kernel, "drawn", {"BV": 4096, "NOISE": True, "CHOICE": False}, 8),
    Variant(pick_triton._pick_kernel, "drawn from penalised logits", {"BV": 4096, "NOISE": True, "CHOICE": True}, 8),
    *(
        Variant(
            pick_triton._head_kernel,
            f"{rows} rows, {what}",
            {"BR": rows, "BV": 128, "BC": 64, "NOISE": noise, "UPCAST": False},
            4 if rows == 16 else 8,
            3,
        )
        for rows in (16, 64)
        for noise, what in ((False, "greedy"), (True, "drawn"))
    ),
    Variant(pick_triton._join_kernel, "1024 tiles", {"BT": 1024}),
    Variant(verify_triton._walk_kernel, "64 rows", {"BK": 64, "ROUNDS": 6}, 1),
    Variant(verify_triton._walk_kernel, "1024 rows", {"BK": 1024, "ROUNDS": 10}, 4),
    Variant(verify_triton._rejection_kernel, "", {"BV": 4096}, 8),
    Variant(verify_triton._block_kernel, "", {"BV": 4096}, 8),
    Variant(kv_triton._write_kernel, "head 128", {"D": 128, "BH": 16, "ROTARY": True}),
    Variant(kv_triton._move_kernel, "", {"BW": 1024, "BACK": False}),
    Variant(reveal_triton._reveal_kernel, "block 32", {"BB": 32}, 1),
]


def compiled(variant: Variant, target: str) -> Report:
    """Compile one kernel for one target."""
    function = variant.kernel
    names = [name for name in function.arg_names if name not in variant.constants]
    signature = {name: _type(name, variant.dtype) for name in names} | dict.fromkeys(variant.constants, "constexpr")
    aligned: Any = {(number,): [["tt.divisibility", 16]] for number, name in enumerate(function.arg_names) if name.startswith("p_")}
    source = ASTSource(fn=function, signature=signature, constexprs=variant.constants, attrs=aligned)
    made: Any = triton.compile(source, target=TARGETS[target], options={"num_warps": variant.warps, "num_stages": variant.stages})
    registers, spills = _of_amd(made.asm["amdgcn"]) if target.startswith("gfx") else _of_nvidia(made.asm["cubin"])
    return Report(function.__name__, variant.name, target, registers, spills, int(made.metadata.shared))


def _type(name: str, dtype: str) -> str:
    if not name.startswith("p_"):
        return NUMBERS.get(name, "i32")
    told = POINTERS.get(name, "i64")
    return f"*{dtype if told == 'x' else told}"


def _of_nvidia(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack, in which spilled ones lie."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([HERE / "cuobjdump", "--dump-resource-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def _of_amd(text: str) -> tuple[int, int]:
    numbers = [re.search(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count")]
    registers, spills = (int(one[1]) if one else 0 for one in numbers)
    return registers, spills


def table(reports: list[Report]) -> str:
    """Markdown: a line for each kernel and variant, registers / spills / shared KiB for each target."""
    lines = ["| kernel | variant | " + " | ".join(TARGETS) + " |", "|" + "---|" * (2 + len(TARGETS))]
    by = {(one.kernel, one.variant, one.target): one for one in reports}
    for variant in VARIANTS:
        name = variant.kernel.__name__
        own = [by[name, variant.name, target] for target in TARGETS]
        cells = [f"{one.registers} / {one.spills} / {one.shared_bytes / 1024:.1f}" for one in own]
        lines.append(f"| {name.strip('_').removesuffix('_kernel')} | {variant.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


HEAD = """# Kernels

Generated by `python -m drawloom.kernels.compiled > docs/kernels.md`; do not edit. Every Triton kernel as the compilers see it, without a
GPU: registers a thread / spilled bytes (NVIDIA) or registers (AMD) / KiB of shared memory. Triton {version}.
"""


def main() -> None:
    targets = [word for word in sys.argv[1:] if word in TARGETS] or list(TARGETS)
    reports = [compiled(variant, target) for variant in VARIANTS for target in targets]
    if "--json" in sys.argv:
        print(json.dumps([asdict(one) for one in reports]))
    else:
        print(HEAD.format(version=triton.__version__))
        print(table(reports))


if __name__ == "__main__":
    main()
