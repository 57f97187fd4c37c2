"""AUP, accuracy under parallelism: one number for a curve of accuracy over tokens per forward. d3LLM (arXiv 2601.07568)."""

import math
from collections.abc import Sequence
from itertools import pairwise

from drawloom.errors import SettingError

SLACK = 5.0  # points of accuracy below the first one that still count
STEEPNESS = 3.0


def aup(points: Sequence[tuple[float, float]], best: float) -> float:
    """Area under accuracy (percent) over TPF, points sorted by TPF; accuracy below `best` (of all compared methods) counts less.

    rho_1 y_1 + sum 0.5 (rho_i - rho_{i-1}) (y_i W(y_i) + y_{i-1} W(y_{i-1})), W(y) = min(exp(-3 (1 - y / best)), 1), without points more
    than 5 below y_1. Raises SettingError when there is no point, or the last one is more than 5 below the first.
    """
    if not points:
        raise SettingError("AUP needs at least one point of (tokens per forward, accuracy)")
    ordered = sorted(points)
    least = ordered[0][1] - SLACK
    if ordered[-1][1] < least:
        raise SettingError(
            f"AUP: the fastest point has accuracy {ordered[-1][1]:.1f}, more than {SLACK:g} below the slowest's {ordered[0][1]:.1f}"
        )
    kept = [(rho, y) for rho, y in ordered if y >= least]
    total = kept[0][0] * kept[0][1]
    for (rho_before, before), (rho, y) in pairwise(kept):
        total += 0.5 * (rho - rho_before) * (y * _weight(y, best) + before * _weight(before, best))
    return total


def _weight(y: float, best: float) -> float:
    return min(math.exp(-STEEPNESS * (1 - y / best)), 1.0) if best > 0 else 0.0
