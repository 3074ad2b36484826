"""From guesses to lower bounds on ε, with confidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import betaincinv
from scipy.stats import binom

from tacit.randomness import Floats

_MOST = 200.0  # no attack with fewer than e^200 guesses finds more


def at_most(successes: int, trials: int, level: float) -> float:
    """The Clopper-Pearson upper bound on a probability, wrong with probability at most ``level``."""
    return 1.0 if successes >= trials else float(betaincinv(successes + 1, trials - successes, 1 - level))


def at_least(successes: int, trials: int, level: float) -> float:
    """The Clopper-Pearson lower bound on a probability, wrong with probability at most ``level``."""
    return 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, level))


def distinguishing_epsilon(false_rate: float, true_rate: float, delta: float) -> float:
    """The ε that a test proves which says "in" with probability ``true_rate`` for one data set, ``false_rate`` for the
    other: (ε, δ)-DP demands true <= e^ε false + δ, and (for the test turned round) 1 - false <= e^ε (1 - true) + δ.
    """
    bounds = [0.0]
    for right, wrong in ((true_rate, false_rate), (1 - false_rate, 1 - true_rate)):
        if right > delta and wrong > 0:
            bounds.append(math.log((right - delta) / wrong))
    return max(bounds)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the probability of at least ``correct`` right ``guesses`` if the mechanism is (ε, δ)-DP, from above.

    *Theorem* (Steinke, Nasr & Jagielski 2023, Theorem 5.2 and appendix D). Each of m canaries is in or out by a fair
    coin; an (ε, δ)-DP mechanism runs; from its output at most r coins are guessed. Then the number W of right guesses
    satisfies P[W >= v] <= f(v) + 2 m δ max_{i >= 1} (f(v - i) - f(v)) / i, with f(v) = P[Bin(r, e^ε/(1 + e^ε)) >= v].

    Why. Without δ: given the output and the coins before it, a coin is as guessed with probability at most
    q = e^ε / (1 + e^ε), by Bayes' rule on a fair coin, so W is dominated by Bin(r, q). With δ: each coin is given away
    altogether in an event of probability at most 2 δ (δ for each side of the coin), so W is dominated by Bin(r, q) + F
    with E F <= 2 m δ. Of all such F the worst puts its mass on one value i, the one at which it gains most for its
    mean: it moves f(v) to f(v - i) with probability 2 m δ / i.
    """
    rate = 1 / (1 + math.exp(-epsilon))
    tail = binom.sf(correct - 1, guesses, rate)
    given_away = np.arange(1, correct + 1)
    gained = np.cumsum(binom.pmf(correct - given_away, guesses, rate))  # f(v - i) - f(v)
    worst = float((gained / given_away).max()) if correct else 0.0
    return float(min(1.0, tail + 2 * canaries * delta * worst))


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """The largest ε that is refuted: every smaller one makes so many right guesses less likely than ``level``."""

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < level

    return largest(refuted, 0.0, _MOST)


def largest(holds: Callable[[float], bool], low: float, high: float, tolerance: float = 1e-6) -> float:
    """The largest value up to which ``holds`` is true, within ``tolerance`` and from below; ``low`` if it never is."""
    if not holds(low):
        return low
    if holds(high):
        return high
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def guessed(scores: Floats, guesses: int) -> Floats:
    """+1 ("in") for the highest half of ``guesses`` scores, -1 ("out") for as many of the lowest, 0 for the rest."""
    order, half = np.argsort(scores, kind="stable"), guesses // 2
    marks = np.zeros(scores.size)
    marks[order[scores.size - (guesses - half) :]] = 1
    marks[order[:half]] = -1
    return marks


def right_guesses(scores: Floats, included: Floats, guesses: int) -> int:
    """Return how many of the guesses from the extreme scores are right."""
    return int(((guessed(scores, guesses) * np.where(included > 0, 1, -1)) > 0).sum())


def best_guess(
    scores: Floats, included: Floats, counts: Sequence[int], delta: float, level: float
) -> tuple[float, int, int]:
    """The best of the bounds for each number of guesses, all holding at once with probability 1 - ``level``.

    ``counts`` must be chosen without looking at the scores. Returns ε, the number of guesses and how many were right.
    """
    found = []
    for count in sorted(set(counts)):
        right = right_guesses(scores, included, count)
        epsilon = one_run_epsilon(scores.size, count, right, delta, level / len(set(counts)))
        found.append((epsilon, count, right))
    return max(found)
