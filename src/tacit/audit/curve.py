"""Bounds from a test if the mechanism has the recorded form and only the size of its noise is in doubt.

The accountant claims more than one (ε, δ): it claims the whole curve δ(ε), and with it a bound on every test. One that
says "in" with probabilities true and false for the two data sets has true <= e^ε false + δ(ε) at every ε. Let C_s be
the recorded composition with all its noise multiplied by s. The test refutes C_s for every s from some s* on (more
noise allows less). If the mechanism is C_s for *some* s, then s < s* and its ε at the wanted δ is above that of C_{s*}.

That last sentence is the assumption; this one needs none: s* < 1 refutes the curve that was claimed, and only then is
the bound above the claim. For Gaussian sums over everyone this is the bound on μ of Gaussian differential privacy
(Dong, Roth & Su 2022; used for auditing by Nasr et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tacit.accounting import compose
from tacit.accounting.accountants import Slackened, find
from tacit.accounting.composition import Composition
from tacit.accounting.pld import Pld
from tacit.audit.bounds import distinguishing_epsilon
from tacit.audit.tradeoff import TradeOff, refuted
from tacit.ledger import GaussianSum, Ledger, Query, Step

_POINTS = 16
# Upper bounds still, within a tenth of a percent or so, and several times as quick.
_QUICK = Slackened(Pld(tolerance=1e-3))
_WIDEST = math.log(8.0)  # how far from the recorded noise the search goes; beyond, the claim is off by far


def gaussian_epsilon(ledger: Ledger, false_rate: float, true_rate: float, delta: float) -> float:
    """The ε at ``delta`` that a test with these probabilities proves of the ledger's mechanism, its noise unknown."""
    reach = distinguishing_epsilon(false_rate, true_rate, 0.0)
    if reach <= 0:
        return 0.0
    losses = np.linspace(0.0, reach, _POINTS).tolist()

    def impossible(composition: Composition) -> bool:
        allowed = _QUICK.deltas(composition, losses)
        return any(_excess(false_rate, true_rate, loss) > most for loss, most in zip(losses, allowed, strict=True))

    return _noise_epsilon(ledger, impossible, delta)


def one_run_curve_epsilon(
    ledger: Ledger, *, canaries: int, guesses: int, correct: int, delta: float, level: float
) -> float:
    """The ε at ``delta`` that so many right guesses in one run prove of the ledger's mechanism, its noise unknown.

    The bound is that of `tacit.audit.tradeoff`: the noise of different canaries need not be independent.
    """
    reach = 2 * find("pld").epsilon(_scaled(ledger, 1.0), delta).upper
    losses = [reach * (place / _POINTS) ** 1.5 for place in range(_POINTS + 1)]  # closer together where they matter

    def impossible(composition: Composition) -> bool:
        curve = TradeOff.of(losses, _QUICK.deltas(composition, losses))
        return refuted(curve, canaries=canaries, guesses=guesses, correct=correct, level=level)

    return _noise_epsilon(ledger, impossible, delta)


def _noise_epsilon(ledger: Ledger, impossible: Callable[[Composition], bool], delta: float) -> float:
    """The ε at ``delta`` of the recorded composition with the least noise that is refuted; 0 if none is."""
    quietest = least(lambda log_scale: impossible(_scaled(ledger, math.exp(log_scale))), _WIDEST)
    if quietest is None:
        return 0.0
    return find("pld").epsilon(_scaled(ledger, math.exp(quietest)), delta).lower or 0.0


def least(holds: Callable[[float], bool], reach: float, tolerance: float = 2e-3) -> float | None:
    """The least value from which on ``holds`` is true, within ``tolerance`` and from above; None if there is none.

    The search begins at 0 and goes in growing steps, at most ``reach`` far: values far from 0 take longest to try.
    """
    step, true = 0.2, holds(0.0)
    near = 0.0
    while True:
        far = max(near - step, -reach) if true else min(near + step, reach)
        if holds(far) != true:
            break
        if abs(far) >= reach:
            return far if true else None
        near, step = far, 2 * step
    low, high = min(near, far), max(near, far)
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _excess(false_rate: float, true_rate: float, epsilon: float) -> float:
    """The δ that a test shows at ``epsilon``, in the worse direction."""
    factor = math.exp(epsilon)
    return max(true_rate - factor * false_rate, 1 - false_rate - factor * (1 - true_rate))


def _scaled(ledger: Ledger, factor: float) -> Composition:
    """The recorded composition with every noise multiplied by ``factor``."""
    steps = [(Step(step.sampling, _louder(step.queries, factor)), count) for step, count in ledger.entries]
    return compose(steps, ledger.header.adjacency)


def _louder(queries: Sequence[Query], factor: float) -> tuple[Query, ...]:
    loud: list[Query] = []
    for query in queries:
        if not isinstance(query, GaussianSum):
            raise ValueError(f"the ledger has {query}; only Gaussian sums have a noise that can be scaled.")
        loud.append(replace(query, noise_std=query.noise_std * factor))
    return tuple(loud)
