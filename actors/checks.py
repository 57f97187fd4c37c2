"""What is refused before it runs: every reason why a request could fail later is found here and told as a RowError."""

from collections.abc import Mapping

from drawloom.actors.request import Request
from drawloom.decoders.recipe import Value
from drawloom.decoders.recipes import build
from drawloom.decoders.step import Decoder
from drawloom.errors import RowError, SettingError
from drawloom.kernels.attention import FULL
from drawloom.models.pages import PagePool
from drawloom.models.ragged import ModelInfo


def decoder_of(request: Request, info: ModelInfo, pool: PagePool) -> Decoder:
    """The request's decoder, after checking recipe, attention kind, token ids, context and pages."""
    try:
        decoder = fitting(request.decoder, request.decoder_params, info)
    except SettingError as error:
        raise RowError("invalid_decoder", str(error)) from None
    check_tokens(request, info)
    check_room(request, decoder, info, pool)
    return decoder


def fitting(name: str, params: Mapping[str, Value], info: ModelInfo) -> Decoder:
    """The decoder of a recipe, for this network. Raises SettingError when there is no such recipe, or its attention is another."""
    known = info.block_tokens > 0  # a test's network takes any
    decoder = build(name, params, info.mask_token_id, info.block_tokens, info.shifted if known else None)
    if known and info.block_tokens != decoder.block_tokens:
        kind, such = _attention(info.block_tokens)
        raise SettingError(f"decoder {name!r} does not fit {info.name}, whose attention is {kind}; one that does is {such!r}")
    if known and decoder.shifted != info.shifted:
        own, other, such = ("the next", "its own", "fast-dllm-v2") if info.shifted else ("its own", "the next", "multi-block")
        raise SettingError(
            f"decoder {name!r} does not fit {info.name}, whose rows predict {own} position and not {other}; one that does is {such!r}"
        )
    return decoder


def _attention(block_tokens: int) -> tuple[str, str]:
    """What it is called, and a recipe for it."""
    if block_tokens == 1:
        return "causal", "ar"
    return ("full", "llada") if block_tokens == FULL else (f"block-causal with blocks of {block_tokens}", "block")


def check_tokens(request: Request, info: ModelInfo) -> None:
    """A prompt, and every token id inside the vocabulary."""
    if not request.prompt_token_ids:
        raise RowError("empty_prompt", "the prompt has no tokens; give it at least one")
    ids = (*request.prompt_token_ids, *request.sampling.stop_token_ids, *request.sampling.logit_bias)
    if wrong := [token for token in ids if not 0 <= token < info.vocab_size]:
        raise RowError("invalid_token_id", f"token id {wrong[0]} is outside the vocabulary of {info.vocab_size}")


def check_room(request: Request, decoder: Decoder, info: ModelInfo, pool: PagePool) -> None:
    """Prompt and answer fit the context, in whole blocks, and the page pool."""
    num_prompt, new, block = len(request.prompt_token_ids), request.sampling.max_tokens, decoder.block_tokens
    room = info.max_context if block == FULL else info.max_context // block * block
    if num_prompt + new > room:
        raise RowError(
            "prompt_too_long",
            f"prompt has {num_prompt} tokens, at most {max(0, room - new)} fit beside max_tokens={new} in a context of {room}; "
            "shorten it or lower max_tokens",
        )
    pages = -(-decoder.room(num_prompt + new, num_prompt + new) // pool.page_tokens)
    if pages > pool.num_pages:
        raise RowError(
            "prompt_too_long",
            f"prompt of {num_prompt} tokens with max_tokens={new} needs {pages} K/V pages, the pool has {pool.num_pages}; "
            "shorten it, lower max_tokens or raise kv_gib",
        )
