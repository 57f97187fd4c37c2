"""pick against plain Python, its law against the exact one, and rows that do not know their neighbours."""

import pytest
import torch

from drawloom.errors import SettingError
from drawloom.kernels.native import why_not
from drawloom.kernels.noise import gumbel
from drawloom.kernels.pick import Draw, Penalty, narrow, pick, pick_native, pick_reference, top_logprobs

V = 37


def draw(rows: int, **given) -> Draw:
    base = {
        "temperature": torch.full((rows,), 0.8),
        "top_k": torch.zeros(rows, dtype=torch.int64),
        "top_p": torch.ones(rows),
        "min_p": torch.zeros(rows),
        "seed": torch.arange(rows) * 7919,
        "sample": torch.zeros(rows, dtype=torch.int64),
        "position": torch.arange(rows) + 5,
    }
    return Draw(**{**base, **{name: torch.tensor([value] * rows) for name, value in given.items()}})


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3


def kept(row: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The tokens that survive top-k, then top-p, then min-p, by the definitions."""
    order = sorted(range(V), key=lambda token: (-float(row[token]), token))[: top_k or V]
    prob = torch.softmax(row[order], 0).tolist()
    mass, out = 0.0, set()
    for token, p in zip(order, prob, strict=True):
        if out and ((top_p < 1 and mass >= top_p) or p < min_p * prob[0]):
            break
        out.add(token)
        mass += p
    return out


@pytest.mark.parametrize("top_k", [0, 1, 5])
@pytest.mark.parametrize("top_p", [1.0, 0.7, 0.01])
@pytest.mark.parametrize("min_p", [0.0, 0.2])
def test_narrow_keeps_what_the_definitions_keep(top_k, top_p, min_p):
    x = logits(9)
    got = narrow(x, draw(9, top_k=top_k, top_p=top_p, min_p=min_p))
    for row in range(9):
        assert set(got[row].isfinite().nonzero()[:, 0].tolist()) == kept(x[row], top_k, top_p, min_p)
        alive = got[row].isfinite()
        assert torch.equal(got[row][alive], x[row][alive])


def test_rows_do_not_know_their_neighbours():
    x, how = logits(16), draw(16, top_p=0.9)
    whole = pick(x, how, narrowed=True)
    for row in range(16):
        one = Draw(**{name: value[row : row + 1] for name, value in vars(how).items()})
        assert int(pick(x[row : row + 1], one, narrowed=True).token) == int(whole.token[row])


def test_temperature_zero_is_argmax_beside_warm_rows():
    x, how = logits(8), draw(8)
    how = Draw(**{**vars(how), "temperature": torch.tensor([0.0, 0.8] * 4)})
    got = pick(x, how).token
    assert torch.equal(got[::2], x[::2].argmax(-1))
    noise = gumbel(how.seed, how.sample, how.position, V)
    assert torch.equal(got[1::2], (x / 0.8 + noise)[1::2].argmax(-1))


def test_draws_follow_the_softmax():
    rows = 20_000
    x = logits(1).expand(rows, V)
    counts = torch.bincount(pick(x, draw(rows)).token, minlength=V).double()
    want = torch.softmax(x[0].double() / 0.8, 0) * rows
    big = want >= 5
    chi_square = float(((counts - want) ** 2 / want)[big].sum())
    assert chi_square < 2 * int(big.sum()) + 40
    biased = torch.softmax(x[0].double(), 0) * rows  # the law at another temperature must be told apart
    assert float(((counts - biased) ** 2 / biased)[big].sum()) > 10 * chi_square


def test_logprob_margin_and_entropy_are_the_models_own():
    x = logits(6)
    got = pick(x, draw(6), want_shape=True)
    assert got.margin is not None
    assert got.entropy is not None
    logp = x.double().log_softmax(-1)
    best = logp.exp().sort(dim=-1, descending=True).values
    torch.testing.assert_close(got.logprob.double(), logp.gather(-1, got.token[:, None])[:, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.margin.double(), best[:, 0] - best[:, 1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.entropy.double(), -(logp.exp() * logp).sum(-1), atol=1e-5, rtol=1e-5)


def test_forbidden_token_has_no_mass():
    x = logits(4)
    x[:, 3] = 50.0
    got = pick(x, None, forbidden=3, want_shape=True)
    assert (got.token != 3).all()
    clean = x.clone()
    clean[:, 3] = -torch.inf
    torch.testing.assert_close(got.logprob, clean.log_softmax(-1).max(-1).values)
    assert got.entropy is not None
    assert got.entropy.isfinite().all()


def test_penalties_and_bias_by_hand():
    x = torch.tensor([[2.0, -1.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0]])
    penalty = Penalty(
        rows=torch.tensor([0]),
        seen=torch.tensor([[True, True, False, False]]),
        count=torch.tensor([[2.0, 0.0, 0.0, 0.0]]),
        repetition=torch.tensor([2.0]),
        frequency=torch.tensor([0.25]),
        presence=torch.tensor([0.1]),
        bias=torch.tensor([[0.0, 0.0, 0.0, 3.0]]),
    )
    from drawloom.kernels.pick import penalise

    torch.testing.assert_close(penalise(x, penalty), torch.tensor([[2.0 / 2 - 0.5 - 0.1, -2.0, 0.5, 3.0], [1.0, 1.0, 1.0, 1.0]]))
    assert pick(x, None, penalty=penalty).token.tolist() == [3, 0]


def test_top_logprobs_and_rank():
    x = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    ids, values, rank = top_logprobs(x, torch.tensor([2]), 2)
    assert ids.tolist() == [[1, 2]]
    assert rank.tolist() == [2]
    torch.testing.assert_close(values, x.log_softmax(-1)[:, [1, 2]])


@pytest.mark.skipif(bool(why_not()), reason=f"native kernels: {why_not()}")
@pytest.mark.parametrize("vocab_size", [1, 3, 63, 64, 65, 1000, 49152])
@pytest.mark.parametrize("scale", [0.1, 1.0, 6.0])
def test_native_pick_is_the_reference(vocab_size, scale):
    """Same token except where two candidates are nearly equal; log-probabilities within twice torch's own error against float64."""
    rows = 7
    x = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * scale
    how = draw(rows)
    how = Draw(**{**vars(how), "temperature": torch.tensor([0.0, 0.8, 1.0, 0.3, 2.0, 0.0, 1.3])})
    want, _ = pick_reference(x, x, how)
    got, logprob = pick_native(x, x, how)
    value = x / torch.where(how.temperature > 0, how.temperature, 1.0)[:, None]
    value = value + gumbel(how.seed, how.sample, how.position, vocab_size) * (how.temperature > 0)[:, None]
    gap = value.gather(1, want[:, None]) - value.gather(1, got[:, None])
    assert float(gap.abs().max()) < 2e-6 * max(1.0, float(value.abs().max()))
    exact = x.double().log_softmax(-1).gather(-1, got[:, None])[:, 0]
    torch_error = (x.log_softmax(-1).gather(-1, got[:, None])[:, 0].double() - exact).abs().max()
    assert float((logprob.double() - exact).abs().max()) <= 2 * float(torch_error) + 4e-6
    assert torch.equal(pick_native(x, x, None)[0], x.argmax(-1))


def test_an_impossible_path_is_refused():
    with pytest.raises(SettingError, match="no implementation 'tritn'"):
        pick(logits(2), None, impl="tritn")
