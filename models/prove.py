"""Prove on a few tokens that a network behind our attention says what it says with its own."""

import torch
from transformers import PreTrainedModel

from drawloom.errors import SettingError
from drawloom.models.ragged import ModelInfo, Ragged
from drawloom.models.transformer import TransformersModel

NUM_TOKENS, PAGE_TOKENS = 9, 4
TOLERANCE = 5e-3  # of the largest logit: far above rounding in 16 bits, far below what a wrong mask or scale does


def prove(network: PreTrainedModel, info: ModelInfo) -> None:
    """Compare logits of nine tokens, run in two steps, with the network's own eager attention. Raises SettingError when they differ."""
    tokens = torch.arange(1, NUM_TOKENS + 1, device=network.device) * 7919 % info.vocab_size
    network.set_attn_implementation("eager")
    with torch.inference_mode():
        want = network(input_ids=tokens[None], use_cache=False).logits[0].float()
    model = TransformersModel(network, info, layout="reference")
    model.allocate(3, PAGE_TOKENS)
    got = torch.cat([model.forward(_rows(tokens, 0, 5)), model.forward(_rows(tokens, 5, NUM_TOKENS))])
    error = ((got - want).abs().max() / want.abs().max()).item()
    if not error <= TOLERANCE:
        raise SettingError(
            f"family {network.config.model_type!r} cannot run here: with our attention its logits differ from its own by {error:.1e} "
            f"of the largest (at most {TOLERANCE:.0e}); use a tested family"
        )


def _rows(tokens: torch.Tensor, first: int, end: int) -> Ragged:
    """Tokens first..end of one sequence whose earlier tokens are committed; pages 2, 1, 0."""
    here, index = tokens.device, torch.arange(first, end, device=tokens.device)
    pages = torch.tensor([[2, 1, 0]], dtype=torch.int32, device=here)
    return Ragged(
        tokens=tokens[first:end],
        positions=index,
        see=(index - first + 1).int(),
        ancestors=None,
        row_starts=torch.tensor([0, end - first], dtype=torch.int32, device=here),
        prefix_lens=torch.tensor([first], dtype=torch.int32, device=here),
        pages=pages,
        slots=pages[0, index // PAGE_TOKENS].long() * PAGE_TOKENS + index % PAGE_TOKENS,
        logit_rows=index - first,
        row_starts_host=[0, end - first],
        prefix_lens_host=[first],
        page_tokens=PAGE_TOKENS,
        scratch={},
    )
