"""The cost of publishing the best of a random number of runs (Papernot & Steinke 2021)."""

from __future__ import annotations

import math

import numpy as np

from tacit.accounting.mixture import Array
from tacit.accounting.tail import deltas
from tacit.ledger.events import Selection


def mean_trials(selection: Selection) -> float:
    """E[K]: η (1-γ) / (γ (1-γ^η)) for the truncated negative binomial, its limit (1/γ - 1) / log(1/γ) at η = 0."""
    if selection.trials == "poisson":
        assert selection.mean is not None
        return selection.mean
    eta, gamma = _parameters(selection)
    # (1-γ)/γ over (1-γ^η)/η; the latter tends to log(1/γ).
    fall = -math.log(gamma) if eta == 0 else -math.expm1(eta * math.log(gamma)) / eta
    return (1 - gamma) / gamma / fall


def in_words(selection: Selection) -> str:
    """Return what was done, for a guarantee: the distribution, and that the rest must stay unseen."""
    kind = f"K Poisson, {mean_trials(selection):.4g} on average"
    if selection.trials != "poisson":
        kind = (
            f"K truncated negative binomial, η = {selection.eta:.4g}, γ = {selection.gamma:.4g}, "
            f"{mean_trials(selection):.4g} on average"
        )
    return f"the best of K secret runs, no other one seen ({kind})"


def curve(selection: Selection, inner_orders: Array, inner: Array, orders: Array, values: Array) -> Array:
    """D_α of the selection at ``orders``, where one run has D_α ``values``, and ``inner`` at ``inner_orders``.

    *Truncated negative binomial* (Theorem 2): D'_α = D_α + (1+η)(1 - 1/β) D_β + (1+η) log(1/γ) / β + log E[K] / (α-1)
    for every β > 1; the best of ``inner_orders`` is taken.

    *Poisson* of mean μ (Theorem 6): if a run is (ε̂, δ̂)-DP with e^ε̂ <= 1 + 1/(α-1), then the outcomes with K >= 1 add
    at most μ exp((α-1)(D_α + μ δ̂)) to exp((α-1) D'_α). K = 0, equally likely with either data set, adds exp(-μ): it is
    counted here, as it must be when μ is small.
    """
    if selection.trials == "poisson":
        mean = mean_trials(selection)
        allowed = np.log1p(1 / (orders - 1))
        slips = np.array([float(np.min(deltas(inner_orders, inner, float(epsilon)))) for epsilon in allowed])
        some = math.log(mean) + (orders - 1) * (values + mean * slips)
        return np.maximum(0.0, np.logaddexp(-mean, some) / (orders - 1))
    eta, gamma = _parameters(selection)
    extra = (1 + eta) * float(np.min((1 - 1 / inner_orders) * inner - math.log(gamma) / inner_orders))
    return np.asarray(values + extra + math.log(mean_trials(selection)) / (orders - 1))


def _parameters(selection: Selection) -> tuple[float, float]:
    assert selection.eta is not None
    assert selection.gamma is not None
    return selection.eta, selection.gamma
