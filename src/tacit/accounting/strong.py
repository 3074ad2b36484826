"""Advanced composition after amplification by sampling: the curve paper 1 (Abadi et al. 2016) compares with, Figure 2.

Each step is (ε₀, δ₀)-DP on its lot, (ε, q δ₀)-DP on all records, and T steps together cost by advanced composition
(Dwork, Rothblum & Vadhan 2010; Kairouz, Oh & Viswanath 2015)

    ε √(2 T ln(1/δ″)) + T m(ε)     at     δ = q T δ₀ + δ″.

The paper's recipe takes ε₀ = √(2 ln(1.25/δ₀)) / σ, ε = q ε₀ and m(ε) = ε². Which of that is proved?

* m(ε) = ε²: yes. The mean loss of an ε-DP step is at most ε tanh(ε/2) <= ε²/2 (Kairouz, Oh & Viswanath 2015).
* ε₀: for ε₀ <= 1 only (Dwork & Roth 2014, Theorem A.1); the recipe goes above that (1.4 at σ = 4).
* ε = q ε₀: no. Amplification gives ln(1 + q (e^ε₀ - 1)), which is more.

`textbook_epsilon` mends both and is a theorem. `paper_epsilon` is the recipe, for the figure. `Strong` gives the
recipe's number where another proof shows that it is an upper bound nonetheless: any number above a proved ε is a
proved ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tacit.accounting.composition import Composition, Gaussian, Interval, Policy, Unproved
from tacit.accounting.rdp import Rdp
from tacit.accounting.tail import MOST_NOISE, check_delta, check_epsilon, finite
from tacit.ledger.events import Adjacency


@dataclass(frozen=True)
class Strong:
    """The recipe of paper 1's Figure 2, never below a proved bound: max(recipe, min(textbook, rdp)).

    For one kind of step, repeated: Gaussian noise, Poisson sampling or none, add/remove.
    """

    name: ClassVar[str] = "strong"

    def epsilon(self, composition: Composition, delta: float) -> Interval:
        delta = check_delta(delta)
        if not composition.parts:
            return Interval(0.0)
        plan = _plan(composition)
        proved = min(textbook_epsilon(*plan, delta), Rdp().epsilon(composition, delta).upper)
        return Interval(finite(max(paper_epsilon(*plan, delta), proved), self.name))

    def delta(self, composition: Composition, epsilon: float) -> Interval:
        """The least δ at which `epsilon` gives no more than this ε; 1 if there is none."""
        epsilon = check_epsilon(epsilon)
        if not composition.parts:
            return Interval(0.0)
        plan = _plan(composition)

        def fits(log_delta: float) -> bool:
            return paper_epsilon(*plan, math.exp(log_delta)) <= epsilon

        low, high = math.log(1e-300), math.log1p(-1e-12)
        if not fits(high):
            return Interval(1.0)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return Interval(min(1.0, max(math.exp(high), Rdp().delta(composition, epsilon).upper)))


def paper_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """The recipe of the figure, with the best split of δ. Not a theorem; see the module's text."""

    def cost(each: float, rest: float) -> float:
        epsilon = rate * math.sqrt(2 * math.log(1.25 / each)) / noise
        return epsilon * math.sqrt(2 * steps * math.log(1 / rest)) + steps * epsilon * epsilon

    return _best_split(cost, rate, steps, delta)


def textbook_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """Advanced composition with every step proved, with the best split of δ; also plain addition, if that is less.

    (ε₀, δ₀) is exact for the Gaussian (Balle & Wang 2018, Theorem 8), amplification is ln(1 + q (e^ε₀ - 1)) and q δ₀
    (Balle, Barthe & Gaboardi 2018, Theorem 8) and the mean loss is ε tanh(ε/2).
    """

    def cost(each: float, rest: float) -> float:
        full = gaussian_epsilon(noise, each)
        epsilon = math.log1p(rate * math.expm1(full)) if full < 700 else full + math.log(rate)
        spread = epsilon * math.sqrt(2 * steps * math.log(1 / rest)) + steps * epsilon * math.tanh(epsilon / 2)
        return min(spread, steps * epsilon)

    return _best_split(cost, rate, steps, delta)


def gaussian_epsilon(noise: float, delta: float) -> float:
    """The least ε, rounded up, at which the Gaussian mechanism of noise multiplier ``noise`` is (ε, δ)-DP."""
    shift = 1 / noise

    def slip(epsilon: float) -> float:
        # Phi(s/2 - ε/s) - e^ε Phi(-s/2 - ε/s); leaving out the second term where e^ε is too large is an upper bound.
        first = 0.5 * math.erfc((epsilon / shift - shift / 2) / math.sqrt(2))
        tail = 0.5 * math.erfc((epsilon / shift + shift / 2) / math.sqrt(2))
        return first - (math.exp(epsilon) * tail if epsilon < 700 else 0.0) + 1e-14 * first

    if slip(0.0) <= delta:
        return 0.0
    # Phi(-x) <= exp(-x²/2), so this is enough.
    low, high = 0.0, shift * shift / 2 + shift * math.sqrt(2 * math.log(1 / delta))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slip(middle) <= delta else (middle, high)
    return high


def _best_split(cost: Callable[[float, float], float], rate: float, steps: int, delta: float) -> float:
    """The least cost over δ = q T δ₀ + δ″. Every split is valid, so the search needs no guarantee of its own."""

    def at(logit: float) -> float:
        share = 1 / (1 + math.exp(-logit))
        each = min((1 - share) * delta / (rate * steps), 0.5)
        return cost(each, share * delta)

    low, high = -12.0, 12.0
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = at(left), at(right)
    best = min(at_left, at_right)
    for _ in range(36):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = at(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = at(right)
        best = min(best, at_left, at_right)
    return best


def _plan(composition: Composition) -> tuple[float, float, int]:
    """(q, z, T) of the one kind of step there is."""
    if len(composition.parts) == 1 and composition.adjacency is Adjacency.ADD_REMOVE:
        term, count = composition.parts[0]
        if count > 10**300:
            raise ValueError("the strong accountant finds no finite epsilon for this composition; use fewer steps.")
        if isinstance(term.base, Gaussian) and term.policy in (Policy.ALWAYS, Policy.POISSON):
            return term.rate, min(term.base.noise_multiplier, MOST_NOISE), count
    raise Unproved(
        "strong composition is for one kind of step only: Gaussian noise, Poisson sampling or none, add/remove; "
        "use rdp or pld."
    )
