"""Multi-token prediction modules (DeepSeek-V3, arXiv 2412.19437): a layer of the target's kind over a projection of [norm(embedding of the
next token) ; norm(what the target's last layer says of this one)], applied again to its own output for every further token."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drawloom.models.drafters.layers import Angles, Attend, PlainLayer


@dataclass(frozen=True)
class MtpOptions:
    own_embeddings: bool = False


class MtpNetwork(nn.Module):
    """The weights, under our names; models/drafters/formats.py has the published ones. The head is the target's."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.options = config, MtpOptions()
        norm = {"normalized_shape": config.hidden_size, "eps": config.rms_norm_eps}
        self.token_norm, self.hidden_norm, self.norm = (nn.RMSNorm(**norm) for _ in range(3))
        self.fc: Any = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layer = PlainLayer(config)
        self.rotary_emb = LlamaRotaryEmbedding(config)

    @property
    def layers(self) -> list[Any]:
        return [self.layer]

    def enter(self, features: Tensor) -> Tensor:
        return features

    def forward(self, embedded: Tensor, hidden: Tensor, angles: Angles, attends: list[Attend]) -> tuple[Tensor, Tensor]:
        """Embedded and hidden [..., H] -> what the next row begins with, which is also what the head reads."""
        hidden = self.fc(torch.cat([self.token_norm(embedded), self.hidden_norm(hidden)], -1))
        hidden = self.norm(self.layer(hidden, angles, attends[0]))
        return hidden, hidden
