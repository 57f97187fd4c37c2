"""Verifiers for sampled drafts: which drafted rows are kept, and what law the next token then has. S sequences, K rows, V vocabulary.

Row 0 holds the last final token; row k was drafted behind row parent[k], parents and earlier siblings before it. p [S, K, V] is the
target's law after each row, q [S, K, V] what each row's token was drawn from (row 0 has none), both after temperature, top-k and the
like. coin [S, K] is uniform in [0, 1), fresh for every step. Each verifier returns the accepted path [S, K] bool, row 0 included, and
weights [S, V] of the next token, which need not sum to 1.

Exact references and proofs: tests/decoders/exact.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from drawloom.kernels.verify import reach

BISECTIONS = 40  # of rho in K-SEQ


@dataclass(frozen=True)
class Draft:
    """Drafted rows; shapes as above. A valid row's parent is valid."""

    tokens: Tensor  # int64
    parent: Tensor  # int64, row 0 is its own
    valid: Tensor  # bool
    q: Tensor  # float32

    def at_token(self, law: Tensor, row: int) -> Tensor:
        """law [S, V] of row's token, [S]."""
        return law.gather(1, self.tokens[:, row, None])[:, 0]


Verdict = tuple[Tensor, Tensor]
Verifier = Callable[[Draft, Tensor, Tensor], Verdict]


def specinfer(draft: Draft, p: Tensor, coin: Tensor) -> Verdict:
    """Multi-step rejection over children drawn independently (Miao et al., arXiv 2305.09781); on a chain, token-level rejection (Leviathan
    et al. 2023; Chen et al. 2023)."""
    return _descend(draft, p, coin, lambda left, q, row: (left - q).clamp(min=0))


def without_replacement(draft: Draft, p: Tensor, coin: Tensor) -> Verdict:
    """The same over children drawn without replacement (Chen et al., Sequoia, arXiv 2402.12374); q is what a row's token was drawn from,
    with its earlier siblings left out."""
    return specinfer(draft, p, coin)


def topk(draft: Draft, p: Tensor, coin: Tensor) -> Verdict:
    """EAGLE's rule for children that are a function of the text (Li et al., arXiv 2401.15077): a candidate is taken with what is left of
    the target's own probability, whatever q says."""
    return _descend(draft, p, coin, lambda left, q, row: left.scatter(1, draft.tokens[:, row, None], 0.0), certain=True)


def _descend(draft: Draft, p: Tensor, coin: Tensor, rest: Callable[[Tensor, Tensor, int], Tensor], *, certain: bool = False) -> Verdict:
    """Walk down from the root, child by child; `rest` says what is left of the target's law when a child was refused."""
    here, left = torch.zeros_like(draft.parent[:, 0]), p[:, 0]
    path = torch.zeros_like(draft.valid)
    path[:, 0] = True
    for row in range(1, draft.tokens.shape[1]):
        asked = draft.valid[:, row] & (draft.parent[:, row] == here)
        q = draft.q[:, row]
        own = draft.at_token(left, row) if certain else draft.at_token(left, row) / draft.at_token(q, row)
        taken = asked & (coin[:, row] < own)
        here, path[:, row] = torch.where(taken, row, here), taken
        refused = _norm(rest(left, q, row), left)
        left = torch.where(taken[:, None], p[:, row], torch.where(asked[:, None], refused, left))
    return path, left


def kseq(draft: Draft, p: Tensor, coin: Tensor) -> Verdict:
    """K-SEQ over k children drawn independently (Sun et al., SpecTr, arXiv 2310.15141), rho found by bisection, from above."""
    rows = draft.tokens.shape[1]
    child = draft.valid[:, None] & (draft.parent[:, None] == torch.arange(rows, device=coin.device)[:, None])
    child[:, :, 0] = False  # [S, row, its children]
    first = child.long().argmax(2)
    count = child.sum(2)
    q = draft.q.gather(1, first[..., None].expand_as(p))  # the law of a row's children
    rho = smallest_rho(p, q, count)
    beta = torch.minimum(q, p / rho[..., None]).sum(2)
    each = torch.where(beta > 0, (1 - (1 - beta) ** count) / beta, 0.0)
    here = torch.zeros_like(first[:, 0])
    path = torch.zeros_like(draft.valid)
    path[:, 0] = True
    for row in range(1, rows):
        asked = draft.valid[:, row] & (draft.parent[:, row] == here)
        own = draft.at_token(_row(p, here), row) / (_row(rho, here) * draft.at_token(draft.q[:, row], row))
        taken = asked & (coin[:, row] < own)
        here, path[:, row] = torch.where(taken, row, here), taken
    target, share = _row(p, here), torch.minimum(_row(q, here), _row(p, here) / _row(rho, here)[:, None])
    refused = (target - share * _row(each, here)[:, None]).clamp(min=0)
    return path, torch.where((_row(count, here) > 0)[:, None], _some(refused, target), target)


def smallest_rho(p: Tensor, q: Tensor, count: Tensor) -> Tensor:
    """The smallest rho in [1, k] at which 1 - (1 - beta)**k <= rho * beta with beta = sum min(q, p / rho): p, q [..., V] -> [...]."""
    k = count.clamp(min=1).to(p.dtype)

    def enough(rho: Tensor) -> Tensor:
        beta = torch.minimum(q, p / rho[..., None]).sum(-1)
        return 1 - (1 - beta) ** k <= rho * beta

    low, high = torch.ones_like(k), k
    high = torch.where(enough(low), low, high)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        good = enough(middle)
        low, high = torch.where(good, low, middle), torch.where(good, middle, high)
    return high


def traversal(draft: Draft, p: Tensor, coin: Tensor) -> Verdict:
    """From the leaves to the root: a whole subtree is tried before its prefix is given up (after Weng et al., arXiv 2505.12398). On a
    chain it is block verification (Sun et al., arXiv 2403.10444), which keeps at least as much as token-level rejection."""
    lines, rows = draft.tokens.shape
    seen = reach(torch.where(draft.valid, draft.parent, torch.arange(rows, device=coin.device)))
    order, leaves = _visits(draft, seen)
    every = torch.arange(lines, device=coin.device)
    left, mass = p.clone(), torch.ones_like(p[:, :, 0])
    ended = torch.full((lines,), -1, device=coin.device)
    for step in range(order.shape[1]):
        row = order[:, step]
        up, live = draft.parent[every, row], draft.valid[every, row] & (row > 0) & (ended < 0)
        q = draft.q[every, row]
        above, weight = left[every, up], mass[every, up]
        token = draft.tokens[every, row, None]
        inside = (weight * above.gather(1, token)[:, 0] / q.gather(1, token)[:, 0]).clamp(max=1)
        entering = live & ~leaves[:, step]
        mass[every, row] = torch.where(entering, inside, mass[every, row])
        leaving = live & leaves[:, step]
        taken = leaving & (coin[every, row] < mass[every, row])
        ended = torch.where(taken, row, ended)
        rest = (weight[:, None] * above - q).clamp(min=0)
        total = rest.sum(1)
        less = torch.where(total + 1 - weight > 0, total / (total + 1 - weight), 1.0)
        refused = leaving & ~taken
        left[every, up] = torch.where(refused[:, None], _norm(rest, above), above)
        mass[every, up] = torch.where(refused, less, weight)
    last = ended.clamp(min=0)
    return _row(seen, last) & draft.valid, _row(left, last)


def _visits(draft: Draft, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in the order of a depth-first walk, each when it is entered and again when it is left: [S, 2 K] int64, and which it is [S, 2 K].
    Rows that are not valid stand alone and change nothing."""
    rows = draft.tokens.shape[1]
    row = torch.arange(rows, device=seen.device)
    size = seen.sum(1)  # of the subtree below each row
    depth = seen.sum(2)
    parent = torch.where(draft.valid, draft.parent, row)
    sibling = (parent[:, :, None] == parent[:, None, :]) & (row[None, :] < row[:, None]) & (row[None, :] > 0) & draft.valid[:, None]
    before = (sibling & draft.valid[..., None]).long() @ size[..., None]
    entered = (seen.long() @ before)[..., 0] + depth
    entered = torch.where(draft.valid, entered, rows + row + 1)
    left = entered + size - 1
    key = torch.cat([entered * 4 * rows, left * 4 * rows + 2 * rows - depth], 1)
    order = key.argsort(1)
    return order % rows, order >= rows


def best_path(draft: Draft, p: Tensor, coin: Tensor) -> Verdict:
    """Block verification of the best of several independent paths: at each depth the token that the target wants most, relative to the
    drafter, among those of the paths that agree so far, under the law that such a choice has. After the idea of greedy multi-path block
    verification (Thomas & Pal, arXiv 2602.16961); the draft must be independent paths of equal length from the root."""
    lines, rows = draft.tokens.shape
    every, alive = torch.arange(lines, device=coin.device), torch.zeros_like(draft.valid)
    alive[:, 0] = True
    path, laws = [torch.zeros_like(draft.parent[:, 0])], []
    there = [torch.ones_like(draft.valid[:, 0])]
    for _ in range(1, rows):
        below = draft.valid & alive.gather(1, draft.parent)
        below[:, 0] = False
        count = below.sum(1)
        first = below.long().argmax(1)
        law, chosen = _best(_row(p, path[-1]), draft.q[every, first], count)
        rank = torch.where(below, chosen.gather(1, draft.tokens), p.shape[2])
        best = rank.argmin(1)
        alive = below & (draft.tokens == draft.tokens.gather(1, best[:, None]))
        path.append(torch.where(count > 0, best, path[-1]))
        laws.append(law)
        there.append(count > 0)
    nodes = (~_row(reach(draft.parent), path[-1])).sort(dim=1, stable=True).indices  # one path that says all of it, then the rest
    on = torch.stack(there, 1)
    chain = Draft(
        draft.tokens.gather(1, nodes),
        torch.arange(rows, device=coin.device).sub(1).clamp(min=0).expand(lines, -1),
        on,
        torch.stack([p[:, 0], *laws], 1),
    )
    target = p.gather(1, nodes[..., None].expand(-1, -1, p.shape[2]))
    kept, left = traversal(chain, target, coin.gather(1, nodes))
    return torch.zeros_like(draft.valid).scatter(1, nodes, kept), left


def _best(p: Tensor, q: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The law of the token that comes first by p / q among `count` independent draws from q, and the place of each token, [S, V] both."""
    worth = torch.where(q > 0, p / q, -1.0)
    order = worth.sort(dim=1, descending=True, stable=True).indices
    drawn = q.gather(1, order)
    rest = drawn.flip(1).cumsum(1).flip(1)
    law = rest ** count[:, None] - (rest - drawn).clamp(min=0) ** count[:, None]
    place = torch.arange(p.shape[1], device=p.device).expand_as(order)
    return torch.zeros_like(law).scatter(1, order, law), torch.zeros_like(order).scatter(1, order, place)


def typical(draft: Draft, p: Tensor, coin: Tensor, *, epsilon: float = 0.09, alpha: float = 0.3) -> Verdict:
    """Typical acceptance (Cai et al., Medusa, arXiv 2401.10774): a token is taken when p > min(epsilon, alpha exp(-entropy)). The law
    of the text is not the target's. The deepest row wins, the first among equals; the first token is never taken on its draft alone, the
    target's likeliest token must agree."""
    above = p.gather(1, draft.parent[..., None].expand_as(p))
    own = above.gather(2, draft.tokens[..., None])[..., 0]
    entropy = torch.special.entr(above).sum(2)
    good = own > torch.minimum(torch.full_like(entropy, epsilon), alpha * torch.exp(-entropy))
    first = (draft.parent == 0) & (draft.tokens == p[:, 0].argmax(1, keepdim=True))
    return _deepest(draft, p, torch.where(draft.parent == 0, first, good))


def among_top(draft: Draft, p: Tensor, coin: Tensor, *, top: int = 3, within: float = float("inf")) -> Verdict:
    """Blockwise parallel decoding's relaxed criteria (Stern et al. 2018): a token is taken when it is among the target's `top` likeliest
    and its log-probability at most `within` nats below the best. The law of the text is not the target's."""
    above = p.gather(1, draft.parent[..., None].expand_as(p))
    own = above.gather(2, draft.tokens[..., None])
    good = ((above > own).sum(2) < top) & (above.amax(2).log() - own[..., 0].log() <= within) & (own[..., 0] > 0)
    return _deepest(draft, p, good)


def _deepest(draft: Draft, p: Tensor, good: Tensor) -> Verdict:
    """The longest path of good rows."""
    row = torch.arange(draft.tokens.shape[1], device=p.device)
    good = draft.valid & (good | (row == 0))
    seen = reach(torch.where(draft.valid, draft.parent, row))
    whole = good & ~(seen & ~good[:, None]).any(2)
    best = torch.where(whole, seen.sum(2), 0).argmax(1)
    return _row(seen, best), _row(p, best)


def _row(values: Tensor, row: Tensor) -> Tensor:
    """values[s, row[s]] of values [S, K, ...]."""
    return values[torch.arange(len(row), device=row.device), row]


def _norm(weights: Tensor, fallback: Tensor) -> Tensor:
    """Weights [S, V] that sum to 1; where nothing is left (rounding: a test that could not fail did) the fallback."""
    total = weights.sum(1, keepdim=True)
    return torch.where(total > 0, weights / total, fallback)


def _some(weights: Tensor, fallback: Tensor) -> Tensor:
    return torch.where(weights.sum(1, keepdim=True) > 0, weights, fallback)
