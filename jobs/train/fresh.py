"""A network that knows nothing yet: a tokenizer learned from the data, and random weights of a chosen shape."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from drawloom.jobs.folders import made
from drawloom.jobs.train.data import read_rows
from drawloom.jobs.train.settings import Positive
from drawloom.models.checkpoint import locate
from drawloom.models.settings import ModelSettings
from drawloom.models.tokenizer import tokenizer_of
from drawloom.settings import Settings

END, MASK = "<|end|>", "<|mask|>"
# Single digits, words with their leading space, runs of spaces, and single other signs.
PIECES = r"\d| ?\p{L}+|\n *| +|[^\s\p{L}\d]"
# A chat is its last user message; these models know no other turn.
CHAT_TEMPLATE = "{{ messages[-1]['content'].rstrip('\\n') + '\\n' }}"


class FreshSettings(Settings):
    """Shape of a Qwen3-style network; the defaults give about 4.1 M parameters."""

    data: str
    output: str
    columns: tuple[str, ...] = ("prompt", "answer")
    tokenizer: str = Field(default="", description="model whose tokenizer is taken; empty: one is learned from the data")
    vocab: Positive = 1024
    hidden: Positive = 256
    layers: Positive = 6
    heads: Positive = 4
    key_heads: Positive = 2
    inner: Positive = 576
    context: Positive = 1024
    seed: int = 0


def fresh(settings: FreshSettings) -> None:
    """Write tokenizer and random weights to settings.output."""
    made(Path(settings.output))
    known = settings.tokenizer and tokenizer_of(locate(ModelSettings(name=settings.tokenizer)))
    tokenizer: Any = known or learn_tokenizer(settings)
    torch.manual_seed(settings.seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.inner,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_heads,
        head_dim=settings.hidden // settings.heads,
        max_position_embeddings=settings.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    network: Any = Qwen3ForCausalLM(config)
    network.to(torch.bfloat16).save_pretrained(settings.output)
    tokenizer.save_pretrained(settings.output)


def learn_tokenizer(settings: FreshSettings) -> PreTrainedTokenizerFast:
    """Byte-level BPE of settings.vocab tokens in all, the end and mask tokens among them."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    learned.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab,
        special_tokens=[END, MASK],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learned.train_from_iterator(_texts(settings), trainer)
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=learned, eos_token=END, pad_token=END, mask_token=MASK, clean_up_tokenization_spaces=False
    )
    made.chat_template = CHAT_TEMPLATE
    return made


def _texts(settings: FreshSettings) -> Iterator[str]:
    for rows in read_rows(settings.data, settings.columns):
        for row in rows:
            yield from (row[name] for name in settings.columns if row[name])
