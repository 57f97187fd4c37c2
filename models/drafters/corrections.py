"""What a block drafter does about places that do not know one another: each is corrected by the tokens drafted before it, in order.

M texts, H width, V vocabulary. A correction of logits adds to what the head says; one of hidden states comes before the head.
"""

from typing import Any

import torch
from torch import Tensor, nn

from drawloom.models.drafters.linear import exact


class Markov(nn.Module):
    """logits += W2 W1[previous token], of low rank (DSpark, arXiv 2607.05147): plain, gated by the place's hidden state, or with a state
    that goes from place to place."""

    KINDS = ("vanilla", "gated", "rnn")

    def __init__(self, kind: str, hidden: int, rank: int, vocab_size: int, said: int) -> None:
        super().__init__()
        self.kind, self.rank = kind, rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2: Any = nn.Linear(rank, said, bias=False)
        if kind == "gated":
            self.gate_proj: Any = nn.Linear(hidden + rank, rank)
        elif kind == "rnn":
            self.joint_proj: Any = nn.Linear(2 * rank + hidden, 3 * rank)

    def begin(self, lines: int, like: Tensor) -> Tensor:
        """The state before the first place, [M, rank]."""
        return like.new_zeros(lines, self.rank)

    def forward(self, place: int, hidden: Tensor, token: Tensor, embedded: Tensor, state: Tensor) -> tuple[Tensor | None, Tensor]:
        """What is added to the logits [M, V] of a place with hidden [M, H] behind token [M], and the next state."""
        previous = self.markov_w1(token)
        if self.kind == "vanilla":
            return self.markov_w2(previous), state
        if self.kind == "gated":
            return self.markov_w2(torch.sigmoid(self.gate_proj(torch.cat([hidden, previous], -1))) * previous), state
        gate, fresh, out = self.joint_proj(torch.cat([state, previous, hidden], -1)).chunk(3, -1)
        gate = torch.sigmoid(gate)
        return self.markov_w2(torch.tanh(out)), gate * state + (1 - gate) * torch.tanh(fresh)

    def pack(self) -> None:
        self.markov_w2 = exact(self.markov_w2)
        for name in ("gate_proj", "joint_proj"):
            if hasattr(self, name):
                setattr(self, name, exact(getattr(self, name)))


class Gru(nn.Module):
    """logits += MLP [hidden ; GRU over the embeddings of what is drafted] from place `pure` on (Domino, arXiv 2605.29707)."""

    def __init__(self, hidden: int, size: int, middle: int, said: int, pure: int) -> None:
        super().__init__()
        self.pure, self.size = pure, size
        self.gru_in: Any = nn.Linear(hidden, 3 * size, bias=False)
        self.gru_state: Any = nn.Linear(size, 3 * size, bias=False)
        self.down: Any = nn.Linear(hidden + size, middle, bias=False)
        self.up: Any = nn.Linear(middle, said, bias=False)

    def begin(self, lines: int, like: Tensor) -> Tensor:
        """The state before the first place, [M, size]."""
        return like.new_zeros(lines, self.size)

    def forward(self, place: int, hidden: Tensor, token: Tensor, embedded: Tensor, state: Tensor) -> tuple[Tensor | None, Tensor]:
        """What is added to the logits [M, V] of a place with hidden [M, H] behind a token embedded [M, H], and the next state."""
        reset, update, fresh = self.gru_in(embedded).chunk(3, -1)
        old_reset, old_update, old_fresh = self.gru_state(state).chunk(3, -1)
        keep = torch.sigmoid(update + old_update)
        state = (1 - keep) * torch.tanh(fresh + torch.sigmoid(reset + old_reset) * old_fresh) + keep * state
        if place < self.pure:
            return None, state
        return self.up(nn.functional.silu(self.down(torch.cat([hidden, state], -1)))), state

    def pack(self) -> None:
        for name in ("gru_in", "gru_state", "down", "up"):
            setattr(self, name, exact(getattr(self, name)))


class Hidden(nn.Module):
    """hidden += SwiGLU [norm(hidden) ; norm(embedding of the previous token)], before the head (DFly, arXiv 2607.25852)."""

    def __init__(self, hidden: int, middle: int, eps: float) -> None:
        super().__init__()
        self.hidden_norm, self.embed_norm = nn.RMSNorm(hidden, eps=eps), nn.RMSNorm(hidden, eps=eps)
        self.gate_proj: Any = nn.Linear(2 * hidden, middle, bias=False)
        self.up_proj: Any = nn.Linear(2 * hidden, middle, bias=False)
        self.down_proj: Any = nn.Linear(middle, hidden, bias=False)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Hidden [..., H] of a place and the token before it embedded [..., H] -> hidden [..., H]."""
        both = torch.cat([self.hidden_norm(hidden), self.embed_norm(embedded)], -1)
        return hidden + self.down_proj(nn.functional.silu(self.gate_proj(both)) * self.up_proj(both))

    def pack(self) -> None:
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(self, name, exact(getattr(self, name)))


class Confidence(nn.Module):
    """The chance that a place is accepted if all before it are: sigma(w [hidden ; W1[previous token]] + b) (DSpark). It does not look at
    the place's own token, so a draft may end there under any verifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, previous: Tensor | None) -> Tensor:
        """Hidden [M, H], and what the Markov head looks up [M, rank] if it reads that -> [M]."""
        seen = hidden if previous is None else torch.cat([hidden, previous], -1)
        return torch.sigmoid((seen * self.proj.weight).sum(-1) + self.proj.bias).float()
