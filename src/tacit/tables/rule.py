"""Settings for a private model of a table, from public numbers alone: records, features, classes and the budget.

The rule: a sixteenth of the records in a lot but no more than 65,536, 300 steps, momentum 0.9, the average of the last
half of the iterates, and a step size and a clip norm that follow from r = sqrt(n ε / (150 d)), between 0.05 and 1.5:

* logistic regression: step size r, clip norm 2 r. A gradient of a row of k columns has a norm of up to sqrt(2 (k + 1)).
  Where noise is small, clipping less lets the loss be what it is meant to be; where it dominates, smaller steps with
  less noise lose less than they gain.
* logistic regression of rows with free text: step size 8 r, at most 4 / (columns + 1). The n-grams of a text share a
  length of one among many features, each with a small gradient.
* with a hidden layer, and for least squares: step size 2 r, clip norm 1.

With more epochs there would be more noise in each; at a sixteenth, amplification has already most of its effect, and
300 steps are enough for features of size one. Beyond a million records noise is far below what a lot of 65,536 says
anyway, and larger ones would only take longer.

The squared error, unlike that of classes, has a curvature that grows with the row: twice its squared norm, which is at
most the number k of columns and one for the constant. A step size of at most 1 / (k + 1) is stable with this momentum.

`docs/tables.md` has what the rule loses against a tuned run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = 300
_FEWEST = 32
_MOST = 65_536
_LOUDEST = 1 / 3
_KNOTS = 16
_FOR_A_KNOT = 50
_ROOM_FOR_NUMBERS = 250
_ROOM_FOR_CLASSES = 3000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model of a table is trained."""

    lot_size: int
    steps: int
    learning_rate: float
    clip_norm: float
    momentum: float = 0.9
    tail: float = 0.5
    """The share of the iterates, counted from the last, whose average is the model."""


def settings(
    *,
    records: int,
    parameters: int,
    epsilon: float,
    squared: int | None = None,
    hidden: bool = False,
    texts: int | None = None,
) -> Settings:
    """The settings for ``records`` records, a model of ``parameters`` parameters and a budget of ``epsilon``.

    ``squared`` is for least squares: how many columns there are. ``hidden``: whether the model has a hidden layer.
    ``texts`` is for logistic regression of rows with free text: how many columns there are.
    """
    lot = min(records, max(_FEWEST, min(round(records / 16), _MOST)))
    share = min(max(math.sqrt(records * epsilon / (150 * parameters)), 0.05), 1.5)
    if squared is not None:
        return Settings(lot_size=lot, steps=_STEPS, learning_rate=min(2 * share, 1 / (squared + 1)), clip_norm=1.0)
    if hidden:
        return Settings(lot_size=lot, steps=_STEPS, learning_rate=2 * share, clip_norm=1.0)
    rate = share if texts is None else min(8 * share, 4 / (texts + 1))
    return Settings(lot_size=lot, steps=_STEPS, learning_rate=rate, clip_norm=2 * share)


def choose_model(
    *, records: int, columns: int, epsilon: float, classes: bool, texts: Sequence[str] = ()
) -> tuple[str, str]:
    """Return ``linear`` or ``boosted`` and a sentence that says why, from public numbers alone.

    Records times ε over columns says how well the shape of a column can be seen through noise. Boosting needs 250 of it
    for a number; for classes, which say less, 3000: below, the smoother linear model loses less than it gains. A small
    network is better than both on no table that was tried (`docs/tables.md`), so it is never chosen. Boosting reads no
    free text.
    """
    if texts:
        return "linear", f"The model is linear: the columns {', '.join(texts)} are text, which boosting does not read."
    room, least = records * epsilon / columns, _ROOM_FOR_CLASSES if classes else _ROOM_FOR_NUMBERS
    kind, word = ("boosted", "at least") if room >= least else ("linear", "below")
    return kind, (
        f"The model is {kind}: {records} records × ε = {epsilon:g} / {columns} columns = {room:.0f}, {word} {least}. "
        f"From {least} on, boosting is better for {'classes' if classes else 'a number'}."
    )


def most_knots(*, records: int, epsilon: float, outputs: int, columns: int) -> int:
    """Return how many knots a column of numbers may have.

    Each is a feature with a parameter for every output; with more than n ε / 50 parameters noise takes more than the
    finer shape gives.
    """
    return min(_KNOTS, math.floor(records * epsilon / (_FOR_A_KNOT * outputs * columns)))


def text_buckets(*, records: int, epsilon: float, outputs: int, texts: int) -> int:
    """Return how many buckets the n-grams of a text have: about n ε / 8 parameters, a power of two from 64 to 2048.

    More buckets keep more words apart; fewer have less noise.
    """
    wanted = records * epsilon / (8 * outputs * texts)
    return int(2 ** min(max(round(math.log2(max(wanted, 1.0))), 6), 11))


def check_enough(
    *,
    records: int,
    parameters: int,
    epsilon: float,
    noise_multiplier: float,
    chosen: Settings,
    word: str = "records to train on",
) -> None:
    """Refuse a budget under which noise would drown every record.

    The noise on a mean gradient has norm z C sqrt(d) / L a step, and less by sqrt(T) on the average of T steps. Where
    that is above a third of the clip norm, which is the most a mean gradient can be, there is nothing to learn from.
    Records, parameters and ε are public, so this can be, and is, asked before anything is charged.
    """
    ratio = noise_multiplier * math.sqrt(parameters / chosen.steps) / chosen.lot_size
    if ratio > _LOUDEST:
        needed = math.ceil(records * ratio / _LOUDEST)
        raise ValueError(
            f"{records} {word} are too few for epsilon {epsilon:g}: averaged over all steps the noise "
            f"would be {ratio:.2g} times the largest gradient. About {needed} are needed, or a larger epsilon, or "
            "fewer columns."
        )


def most_parameters(*, noise_multiplier: float, chosen: Settings) -> int:
    """The largest model that `check_enough` lets pass."""
    return math.floor(chosen.steps * (_LOUDEST * chosen.lot_size / noise_multiplier) ** 2)
