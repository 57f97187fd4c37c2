"""Philox against its published vectors; Gumbel noise against its law; draws that know nothing of their batch."""

import math

import pytest
import torch

from drawloom.kernels.noise import gumbel, gumbel_at, philox, to_gumbel

ONES = 0xFFFFFFFF
# Random123's kat_vectors for philox4x32-10: counter, key, output
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "want"), VECTORS)
def test_philox_known_answers(counter, key, want):
    c0, c1, c2, c3, k0, k1 = (torch.tensor([word]) for word in (*counter, *key))
    words = philox((c0, c1, c2, c3), (k0, k1))
    assert tuple(int(word) for word in words) == want


def test_gumbel_is_a_function_of_its_key_alone():
    seed, sample, position = torch.tensor([5, -7, 2**62]), torch.tensor([0, 3, 1]), torch.tensor([0, 17, 4000])
    whole = gumbel(seed, sample, position, 101)
    for row in range(3):
        assert torch.equal(gumbel(seed[row : row + 1], sample[row : row + 1], position[row : row + 1], 101)[0], whole[row])
    assert torch.equal(gumbel(seed, sample, position, 37), whole[:, :37])
    token = torch.tensor([100, 0, 50])
    assert torch.equal(gumbel_at(seed, sample, position, token), whole.gather(1, token[:, None])[:, 0])


@pytest.mark.parametrize("change", ["seed", "high half of seed", "sample", "position"])
def test_every_part_of_the_key_matters(change):
    base = {"seed": 1, "sample": 0, "position": 9}
    other = dict(base)
    if change == "high half of seed":
        other["seed"] += 2**40
    else:
        other[change] += 1
    assert (one_row(**base) != one_row(**other)).all()


def one_row(seed: int, sample: int, position: int) -> torch.Tensor:
    return gumbel(torch.tensor([seed]), torch.tensor([sample]), torch.tensor([position]), 64)


def test_gumbel_has_its_law():
    noise = gumbel(torch.arange(4), torch.zeros(4, dtype=torch.int64), torch.arange(4), 100_000).double()
    assert noise.isfinite().all()
    assert abs(float(noise.mean()) - 0.5772156649) < 0.01
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.02
    for x in (-1.0, 0.0, 1.0, 3.0):
        assert abs(float((noise <= x).double().mean()) - math.exp(-math.exp(-x))) < 0.005


def test_extreme_words_stay_finite():
    assert to_gumbel(torch.tensor([0, ONES])).isfinite().all()
