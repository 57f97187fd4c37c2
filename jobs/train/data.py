"""Parquet of prompts and answers -> documents of token ids -> packed rows. An order depends on (files, seed) alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import torch
from torch import Tensor

from drawloom.errors import SettingError

CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Corpus:
    """Documents of token ids end to end: document d is flat[starts[d] : starts[d + 1]], its answer begins at starts[d] + answers[d]."""

    flat: np.ndarray  # [T] int32
    starts: np.ndarray  # [D + 1] int64
    answers: np.ndarray  # [D] int64, tokens of the prompt

    def __len__(self) -> int:
        return len(self.answers)

    def document(self, index: int) -> np.ndarray:
        return self.flat[self.starts[index] : self.starts[index + 1]]


@dataclass(frozen=True)
class Packed:
    """B rows of L tokens, several documents to a row, all [B, L] int64; document is -1 in the padding."""

    tokens: Tensor
    positions: Tensor  # from 0 in each document
    document: Tensor
    answer: Tensor  # bool: tokens of answers, the end token among them


def read_corpus(path: str, tokenizer: Any, prompt_column: str | None, answer_column: str) -> Corpus:
    """Tokenise every row of the Parquet files at `path`: prompt, answer, end token. Without a prompt column the whole text is learned.

    Raises SettingError when a column is missing or no row holds text.
    """
    columns = [name for name in (prompt_column, answer_column) if name]
    documents: list[np.ndarray] = []
    answers: list[int] = []
    for rows in read_rows(path, columns):
        texts = [[row[name] or "" for row in rows] for name in columns]
        ids = [tokenizer(some, add_special_tokens=False)["input_ids"] if some else [] for some in texts]
        for parts in zip(*ids, strict=True):
            if parts[-1]:
                answers.append(sum(map(len, parts[:-1])))
                documents.append(np.array([*(one for part in parts for one in part), tokenizer.eos_token_id], dtype=np.int32))
    if not documents:
        raise SettingError(f"training data {path!r} has no row with text in column {answer_column!r}")
    starts = np.concatenate([[0], np.cumsum([len(one) for one in documents])])
    return Corpus(np.concatenate(documents), starts, np.array(answers))


def read_outputs(path: str, text: Any, end_token: int, prompt_column: str) -> Corpus:
    """What a finished job said, token by token: its prompts and every sample of its output. text: the tokenizer that the job had.

    Raises SettingError when no row has a sample."""
    documents: list[np.ndarray] = []
    answers: list[int] = []
    for rows in read_rows(path, [prompt_column, "samples"]):
        for row in rows:
            prompt = text.encode(row[prompt_column])
            for sample in row["samples"] or ():
                ended = [end_token] if sample["finish_reason"] == "stop" and sample["stop_reason"] is None else []
                documents.append(np.array([*prompt, *sample["token_ids"], *ended], dtype=np.int32))
                answers.append(len(prompt))
    if not documents:
        raise SettingError(f"training data {path!r} has no row with a completion")
    starts = np.concatenate([[0], np.cumsum([len(one) for one in documents])])
    return Corpus(np.concatenate(documents), starts, np.array(answers))


def columns_of(path: str) -> list[str]:
    """Names of the columns of the Parquet files at `path`. Raises SettingError when they cannot be read."""
    try:
        return list(ds.dataset(path, format="parquet").schema.names)
    except (OSError, ValueError) as error:
        raise SettingError(f"{path!r} cannot be read as Parquet: {error}") from error


def read_rows(path: str, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """Rows of the Parquet files at `path`, some at a time. Raises SettingError when they cannot be read or lack a column."""
    try:
        table = ds.dataset(path, format="parquet")
    except (OSError, ValueError) as error:
        raise SettingError(f"{path!r} cannot be read as Parquet: {error}") from error
    if missing := [name for name in columns if name not in table.schema.names]:
        raise SettingError(f"{path!r} has no column {missing[0]!r}; it has {', '.join(table.schema.names)}")
    for batch in table.to_batches(columns=list(columns), batch_size=CHUNK_ROWS):
        yield batch.to_pylist()


def order_of(corpus: Corpus, seed: int) -> Iterator[int]:
    """Document numbers without end, each epoch in another order."""
    epoch = 0
    while True:
        yield from np.random.default_rng([seed, epoch]).permutation(len(corpus)).tolist()
        epoch += 1


def batches(corpus: Corpus, rows: int, length: int, seed: int, end_token: int, block: int = 1) -> Iterator[Packed]:
    """Packed batches without end. With block > 1 an answer is filled up with end tokens to the end of its last block, because a diffusion
    model must also say what follows an end. A document longer than a row is cut to it."""
    order, held = order_of(corpus, seed), None
    while True:
        packed: list[list[tuple[np.ndarray, int]]] = []
        for _ in range(rows):
            row: list[tuple[np.ndarray, int]] = []
            room = length
            while True:
                if held is None:
                    held = _padded(corpus, next(order), end_token, block, length)
                if len(held[0]) > room:
                    break
                row.append(held)
                room, held = room - len(held[0]), None
            packed.append(row)
        yield pack(packed, length, end_token)


def _padded(corpus: Corpus, index: int, end_token: int, block: int, most: int) -> tuple[np.ndarray, int]:
    tokens = corpus.document(index)
    fill = -len(tokens) % block
    return np.concatenate([tokens, np.full(fill, end_token, dtype=np.int32)])[:most], int(corpus.answers[index])


def pack(rows: Sequence[Sequence[tuple[np.ndarray, int]]], length: int, end_token: int) -> Packed:
    """Rows of (tokens, where the answer begins) as tensors."""
    tokens = np.full((len(rows), length), end_token, dtype=np.int64)
    positions = np.zeros_like(tokens)
    document = np.full_like(tokens, -1)
    answer = np.zeros(tokens.shape, dtype=bool)
    for line, row in enumerate(rows):
        at = 0
        for number, (ids, begins) in enumerate(row):
            span = slice(at, at + len(ids))
            tokens[line, span], document[line, span] = ids, number
            positions[line, span] = np.arange(len(ids))
            answer[line, at + begins : at + len(ids)] = True
            at += len(ids)
    return Packed(*map(torch.from_numpy, (tokens, positions, document, answer)))
