"""Writing and moving rows of paged caches."""

import torch

from drawloom.kernels.kv import move_rows, write_rows


def test_rows_land_in_their_slots_and_nowhere_else():
    key_cache, value_cache = torch.full((2, 12, 2, 3), -1.0)
    keys, values = torch.randn(2, 3, 2, 3)
    write_rows(keys, values, key_cache, value_cache, torch.tensor([7, 0, 11]))
    for cache, rows in ((key_cache, keys), (value_cache, values)):
        assert torch.equal(cache[[7, 0, 11]], rows)
        assert (cache[[1, 2, 3, 4, 5, 6, 8, 9, 10]] == -1).all()


def test_overlapping_moves_read_everything_before_they_write():
    """A shift by one, a swap and a longer cycle in one call: each target holds what its source held before."""
    cache = torch.arange(10.0)[:, None, None].expand(10, 2, 4).clone()
    source, target = torch.tensor([1, 2, 3, 5, 6, 7, 8, 9]), torch.tensor([0, 1, 2, 6, 5, 8, 9, 7])
    before = cache.clone()
    move_rows(cache, source, target)
    assert torch.equal(cache[target], before[source])
    assert torch.equal(cache[[3, 4]], before[[3, 4]])


def test_no_rows_is_no_move():
    cache = torch.randn(4, 1, 2)
    before = cache.clone()
    none = torch.empty(0, dtype=torch.int64)
    move_rows(cache, none, none)
    assert torch.equal(cache, before)
