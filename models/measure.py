"""How long a forward takes in each layout, beside transformers' own, in one run: python -m drawloom.models.measure [THREADS] [cpu|wall]

Rounds in which every contender runs each shape once, in turn; medians over the rounds, ratios taken within a round. `cpu` counts the
seconds of this process alone, which a shared machine disturbs less; with one thread they are what a quiet machine's clock would say.
"""

import inspect
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from drawloom.models.checkpoint import locate
from drawloom.models.load import info_of, load_network
from drawloom.models.ragged import Ragged
from drawloom.models.settings import ModelSettings
from drawloom.models.transformer import TransformersModel

PAGE_TOKENS = 16
LAYOUTS = ("native", "paged", "padded")


class Shape(NamedTuple):
    """Sequences of equal length: `rows` new tokens each behind `prefix` committed ones, logits of each sequence's last row."""

    sequences: int
    prefix: int
    rows: int


SHAPES = (Shape(1, 128, 1), Shape(8, 128, 1), Shape(16, 128, 1), Shape(1, 128, 16), Shape(8, 128, 8), Shape(1, 0, 256), Shape(1, 0, 1000))


def measure(
    contenders: dict[str, Callable[[Shape], Callable[[], object]]], shapes: tuple[Shape, ...], rounds: int, clock: Callable[[], float]
) -> dict[Shape, dict[str, list[float]]]:
    """Seconds of each contender's forward in each round. A contender prepares a shape and returns what is to be timed."""
    found: dict[Shape, dict[str, list[float]]] = {}
    for shape in shapes:
        ready = {name: prepare(shape) for name, prepare in contenders.items()}
        for run in ready.values():
            run()
        taken = found.setdefault(shape, {name: [] for name in ready})
        for _ in range(rounds):
            for name, run in ready.items():
                start = clock()
                run()
                taken[name].append(clock() - start)
    return found


def ours(model: TransformersModel) -> Callable[[Shape], Callable[[], Tensor]]:
    """A contender that runs a model against pages laid out one sequence after the other."""

    def prepare(shape: Shape) -> Callable[[], Tensor]:
        if shape.prefix:
            model.forward(batch_of(shape._replace(prefix=0, rows=shape.prefix), model.info.vocab_size))
        return lambda: model.forward(batch_of(shape, model.info.vocab_size))

    return prepare


def transformers_own(network: PreTrainedModel) -> Callable[[Shape], Callable[[], object]]:
    """A contender that runs a network's own forward and cache, unpadded: its best case."""

    def prepare(shape: Shape) -> Callable[[], object]:
        cache = DynamicCache(config=network.config)
        if shape.prefix:
            _own_forward(network, _tokens(shape.sequences, shape.prefix, network.config.vocab_size), cache)

        def run() -> None:
            _own_forward(network, _tokens(shape.sequences, shape.rows, network.config.vocab_size), cache)
            cache.crop(-shape.rows)

        return run

    return prepare


@torch.inference_mode()
def _own_forward(network: Any, tokens: Tensor, cache: DynamicCache) -> Tensor:
    named = {"cache" if "cache" in inspect.signature(network.forward).parameters else "past_key_values": cache}  # renamed in 5.2x
    return network(input_ids=tokens, use_cache=True, logits_to_keep=1, **named).logits


def batch_of(shape: Shape, vocab_size: int) -> Ragged:
    """The shape as a batch whose sequences own pages of their own."""
    width = -(-(shape.prefix + shape.rows) // PAGE_TOKENS)
    row = torch.arange(shape.rows).repeat(shape.sequences)
    owner = torch.arange(shape.sequences).repeat_interleave(shape.rows)
    starts = [index * shape.rows for index in range(shape.sequences + 1)]
    return Ragged(
        tokens=_tokens(shape.sequences, shape.rows, vocab_size).flatten(),
        positions=shape.prefix + row,
        see=(row + 1).int(),
        ancestors=None,
        row_starts=torch.tensor(starts, dtype=torch.int32),
        prefix_lens=torch.full((shape.sequences,), shape.prefix, dtype=torch.int32),
        pages=torch.arange(shape.sequences * width, dtype=torch.int32).view(shape.sequences, width),
        slots=owner * width * PAGE_TOKENS + shape.prefix + row,
        logit_rows=torch.tensor(starts[1:]) - 1,
        row_starts_host=starts,
        prefix_lens_host=[shape.prefix] * shape.sequences,
        page_tokens=PAGE_TOKENS,
        scratch={},
    )


def _tokens(sequences: int, rows: int, vocab_size: int) -> Tensor:
    return (torch.arange(sequences * rows) * 7919 % vocab_size).view(sequences, rows)


def table(found: dict[Shape, dict[str, list[float]]], base: str) -> str:
    """A Markdown table: milliseconds, and in brackets how many times faster than `base`."""
    names = list(next(iter(found.values())))
    lines = ["| sequences x rows, prefix | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for shape, taken in found.items():
        cells = [f"{statistics.median(taken[name]) * 1e3:.1f}" + _ratio(taken, name, base) for name in names]
        lines.append(f"| {shape.sequences} x {shape.rows}, {shape.prefix} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratio(taken: dict[str, list[float]], name: str, base: str) -> str:
    return "" if name == base else f" ({statistics.median(a / b for a, b in zip(taken[base], taken[name], strict=True)):.2f}x)"


def main(threads: int = 1, clock: str = "cpu") -> None:
    """Print the table for the embedded model in float32."""
    torch.set_num_threads(threads)
    checkpoint = locate(ModelSettings())
    contenders = {"transformers": transformers_own(load_network(checkpoint, torch.float32, "cpu"))}
    for layout in LAYOUTS:
        network = load_network(checkpoint, torch.float32, "cpu")
        model = TransformersModel(network, info_of(checkpoint, network), layout)
        model.allocate(256, PAGE_TOKENS)
        print(model.describe(), flush=True)
        contenders[layout] = ours(model)
    print(table(measure(contenders, SHAPES, 5, time.process_time if clock == "cpu" else time.perf_counter), "transformers"))


if __name__ == "__main__":
    main(*(int(text) if text.isdigit() else text for text in sys.argv[1:]))  # type: ignore[arg-type]
