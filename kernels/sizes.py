"""Sizes of tiles."""


def next_power(number: int) -> int:
    """The smallest power of two that is not below it; 1 for numbers below 1."""
    return 1 << max(0, int(number) - 1).bit_length()
