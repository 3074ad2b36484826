"""The moments accountant exactly as Abadi et al. 2016 define it (section 3.2 and appendices A to C)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.accounting import discrete, renyi
from tacit.accounting.composition import (
    Composition,
    DiscreteGaussian,
    Gaussian,
    Interval,
    Laplace,
    Policy,
    Pure,
    Term,
    Unproved,
)
from tacit.accounting.mixture import Array, log_moments
from tacit.accounting.tail import LEAST_DELTA, LEAST_NOISE, MOST_NOISE, check_delta, check_epsilon, finite, times
from tacit.ledger.events import Adjacency


@dataclass(frozen=True)
class Moments:
    """α(λ) = log max(E1, E2) at λ = 1 .. ``max_order``, added over the steps, and the tail bound of Theorem 2.

    The best λ for q = 0.01, σ = 4, δ = 1e-5 after 10,000 steps is 19; the paper prints 1.26:

    >>> steps = ((Term(Gaussian(4.0), Policy.POISSON, 0.01), 10_000),)
    >>> round(Moments().epsilon(Composition(Adjacency.ADD_REMOVE, steps), 1e-5).upper, 4)
    1.2586
    """

    max_order: int = 32
    name: ClassVar[str] = "moments"

    def __post_init__(self) -> None:
        order = self.max_order
        if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= 4096:
            raise ValueError(f"max_order is {order!r}; it must be a whole number from 1 to 4096.")

    def epsilon(self, composition: Composition, delta: float) -> Interval:
        """ε = min over λ of (Σ α(λ) + ln(1/δ)) / λ."""
        delta = check_delta(delta)
        if not composition.parts:
            return Interval(0.0)
        orders, totals = self.curve(composition)
        return Interval(finite(float(np.min((totals - math.log(delta)) / orders)), self.name))

    def delta(self, composition: Composition, epsilon: float) -> Interval:
        """δ = min over λ of exp(Σ α(λ) - λ ε), never above 1."""
        epsilon = check_epsilon(epsilon)
        if not composition.parts:
            return Interval(0.0)
        orders, totals = self.curve(composition)
        power = float(np.min(totals - orders * epsilon))
        return Interval(max(math.exp(min(0.0, power)), LEAST_DELTA))

    def curve(self, composition: Composition) -> tuple[Array, Array]:
        """λ and the sum of α(λ) over all terms (Theorem 2, composability)."""
        orders = np.arange(1, self.max_order + 1, dtype=np.float64)
        totals = np.zeros_like(orders)
        with np.errstate(over="ignore"):
            for term, count in composition.parts:
                totals += times(count, _alpha(term, composition.adjacency, composition.shift_factor, orders))
        return orders, totals


def _alpha(term: Term, adjacency: Adjacency, factor: int, orders: Array) -> Array:
    """α(λ) of one term. λ and the Rényi order are one apart: α(λ) = λ D_(λ+1)."""
    base = term.base
    if isinstance(base, Gaussian | DiscreteGaussian | Laplace) and base.noise_multiplier < LEAST_NOISE:
        return np.full_like(orders, math.inf)
    if term.policy is Policy.ALWAYS:
        if isinstance(base, Gaussian):
            return alpha(1.0, base.noise_multiplier / factor, orders)
        if isinstance(base, DiscreteGaussian):
            return discrete.whole(min(base.noise_multiplier, MOST_NOISE) / factor, orders + 1)
        if isinstance(base, Laplace):
            return renyi.laplace(min(base.noise_multiplier, MOST_NOISE) / factor, orders + 1)
        if isinstance(base, Pure):
            return renyi.pure(base.epsilon, orders + 1)
    if term.policy is Policy.POISSON and isinstance(base, Gaussian) and adjacency is Adjacency.ADD_REMOVE:
        return alpha(term.rate, base.noise_multiplier, orders)
    if term.policy is Policy.POISSON and isinstance(base, DiscreteGaussian) and adjacency is Adjacency.ADD_REMOVE:
        return discrete.sampled(
            term.rate, base.noise_multiplier, orders + 1
        )  # the orders are whole, as the proof needs
    raise Unproved(
        f"the moments accountant has no proof for {type(base).__name__} with {term.policy} sampling under {adjacency}; "
        "use rdp or pld."
    )


def alpha(rate: float, noise: float, orders: Array) -> Array:
    """log max(E1, E2) of the sampled Gaussian mechanism, equations 3 and 4; at q = 1 it is λ (λ+1) / (2σ²).

    E2 = A(λ + 1) and E1 = A(-λ) of `tacit.accounting.mixture`. (E2 >= E1 always: Mironov, Talwar & Zhang 2019,
    Theorem 5. The definition takes both and so does this.)
    """
    lam = np.asarray(orders, dtype=np.float64)
    return np.maximum(log_moments(rate, noise, -lam), log_moments(rate, noise, lam + 1))


def lemma3_bound(rate: float, noise: float, order: int) -> float:
    """Lemma 3's asymptotic bound q² λ (λ+1) / ((1-q) σ²), without its O(q³λ³/σ³) term.

    For comparison only: without that term it is not a bound, and no ε is computed from it. The lemma assumes σ >= 1,
    q < 1/(16σ) and λ <= σ² ln(1/(qσ)).
    """
    return rate * rate * order * (order + 1) / ((1 - rate) * noise * noise)


def lemma_c1_bound(epsilon: float, order: float) -> float:
    """Lemma C.1: an ε-DP mechanism has α(λ) <= λε(e^ε - 1) + λ²ε²e^(2ε)/2. `renyi.pure` is the tight form of it."""
    return order * epsilon * math.expm1(epsilon) + (order * epsilon) ** 2 * math.exp(2 * epsilon) / 2
