"""Keys and values in paged caches. A cache is [num_pages * page_tokens, H, D]; a slot is page * page_tokens + offset. M moved slots."""

from torch import Tensor


def write_rows(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Put keys, values [R, H, D] into slots [R] int64 of the caches. Slots are distinct; the caches are changed in place."""
    key_cache.index_copy_(0, slots, keys)
    value_cache.index_copy_(0, slots, values)


def move_rows(cache: Tensor, source: Tensor, target: Tensor) -> None:
    """Copy slots source [M] int64 of a cache to slots target [M] int64, as if all were read before any is written."""
    cache.index_copy_(0, target, cache.index_select(0, source))
