"""The shares of boosting's looks in the budget, and how many cells columns and pairs have: public numbers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from tacit.ledger import Everyone, GaussianSum, Step

CYCLES = 4
"""Rounds over the columns before pairs are looked for, and again over columns and pairs after that."""
MOST_PAIRS = 10
_WEIGHTS = {"counts": 0.03, "norms": 0.02, "columns": 0.2, "pairs": 0.1, "pair counts": 0.05, "all": 0.6}
"""The share of the budget that each kind of query gets, as a share of one over the squared noise multiplier."""
_ROUNDS = {"norms": 2 * CYCLES + 1, "columns": CYCLES, "all": CYCLES}
_FEWEST_BINS, _MOST_FOR_TWO, _MOST_BINS, _FINEST_PAIR = 8, 16, 48, 24


@dataclass(frozen=True, kw_only=True)
class BoostSettings:
    """How a boosted model is trained: the most bins of a column, alone and in a pair, and the rounds."""

    bins: int
    pair_bins: int
    cycles: int = CYCLES
    most_pairs: int = MOST_PAIRS


def boost_settings(*, records: int, columns: int, epsilon: float, classes: int) -> BoostSettings:
    """Return the settings for so many records and columns: as many bins as sqrt(n ε / columns), from 8 to 48.

    ``classes`` is that of the target, 0 for a number. More bins show more of a shape; smoothing makes up for most of
    their noise, but not where there are few records. Which of two classes a record is in says less than a number or
    one of many classes does, so that two have 16 bins at most.
    """
    most = _MOST_FOR_TWO if classes == 2 else _MOST_BINS
    bins = min(max(round(math.sqrt(records * epsilon / columns)), _FEWEST_BINS), most)
    return BoostSettings(bins=bins, pair_bins=min(bins, _FINEST_PAIR))


def schedule(noise_multiplier: float, columns: int) -> dict[str, float]:
    """Return the noise multiplier of every kind of look; all looks together are one of ``noise_multiplier``.

    Formal guarantee: a look of weight w has noise multiplier Z / sqrt(w) as a whole, and the weights of all looks add
    up to 1 at most, whatever was released: which columns a look is about follows from what was released, its noise
    multiplier does not. Adaptive Gaussian mechanisms on everyone compose like one with 1/z² = Σ 1/z_i².
    """
    return {
        name: noise_multiplier * math.sqrt(_ROUNDS.get(name, 1) / weight) for name, weight in _weights(columns).items()
    }


def _weights(columns: int) -> dict[str, float]:
    weights = dict(_WEIGHTS)
    if columns < 2:
        weights["all"] += weights.pop("pairs") + weights.pop("pair counts")
    return weights


STAGES = ("begin", *["columns"] * CYCLES, "pairs", *["all"] * CYCLES)
"""The stages of boosting in their order; a run that is interrupted goes on after the last finished one."""
_LOOKS = {"begin": ("counts",), "columns": ("norms", "columns"), "pairs": ("norms", "pairs", "pair counts")}
_LOOKS["all"] = ("norms", "all")


def left(columns: int, stage: int = 0) -> dict[str, int]:
    """Return how many looks of each kind are at most left after so many of the stages."""
    looks = Counter(look for name in STAGES[stage:] for look in _LOOKS[name])
    return {name: count for name, count in looks.items() if columns > 1 or not name.startswith("pair")}


def weight_left(columns: int, stage: int) -> float:
    """Return the share of the budget that the looks after so many stages have together."""
    weights = _weights(columns)
    return sum(weights[name] * count / _ROUNDS.get(name, 1) for name, count in left(columns, stage).items())


def planned(noise_multiplier: float, columns: int, unit: str, stage: int = 0) -> list[tuple[Step, int]]:
    """Return what boosting after so many stages will be in the ledger at most, but for the names of its sums."""
    loud = schedule(noise_multiplier, columns)
    return [
        (Step(Everyone(unit=unit), (GaussianSum(group=name, clip_norm=1.0, noise_std=loud[name]),)), count)
        for name, count in left(columns, stage).items()
    ]
