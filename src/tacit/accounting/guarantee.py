"""The guarantee: (ε, δ) together with everything it depends on, so that it cannot be quoted without it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Decimal, localcontext

from tacit.accounting import gaussian
from tacit.accounting.accountants import find
from tacit.accounting.composition import Best, Composition
from tacit.accounting.entries import compose
from tacit.accounting.filter import fits_adaptively
from tacit.accounting.selection import in_words
from tacit.accounting.tail import check_delta, check_epsilon
from tacit.ledger import AdaptiveBudget, Budget, Ledger
from tacit.ledger import events as ev
from tacit.ledger.contents import check_unit

_RELEASED = "every noisy value the ledger lists, and whatever is computed from them (all checkpoints)"

_FLOATING = "Noise and sums are computed in floating point; the proof is for real numbers."
_EXACT = (
    "Discrete noise is exact: whole steps of the lattice to which its sums are rounded, and the rounding is in their "
    "sensitivity. Sums, and any other noise, are computed in floating point; there the proof is for real numbers."
)


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """An (epsilon, delta) guarantee with its unit, adjacency and sampling.

    ``epsilon`` and ``delta`` are upper bounds; ``epsilon_lower``, where known, is what neighbours can really attain.
    With ``group`` above 1 neighbours differ in as many records.
    """

    epsilon: float
    delta: float
    epsilon_lower: float | None
    accountant: str
    unit: str
    adjacency: str
    sampling: str
    secure_randomness: bool
    released: str = _RELEASED
    group: int = 1
    adaptive_budget: AdaptiveBudget | None = None
    composition: Composition = field(repr=False)

    def __str__(self) -> str:
        line = (
            f"(ε = {rounded_up(self.epsilon)}, δ = {_three_figures(self.delta)}) {self.unit}-level, {self.adjacency}, "
            f"{self.sampling}, {self.accountant}"
        )
        if self.group > 1:
            line += f"; for any {self.group} records together"
        if self.tuning:
            line += f"; tuning included: {self.tuning}"
        return line if self.secure_randomness else f"{line}; NOT PRIVATE: seeded randomness, for debugging only"

    @property
    def tuning(self) -> str:
        """Return what was chosen among runs and is paid for in epsilon and delta, in words; empty if nothing was."""
        chosen = [(term.base, count) for term, count in self.composition.terms if isinstance(term.base, Best)]
        return " and ".join(f"{count} × " * (count > 1) + in_words(base.selection) for base, count in chosen)

    @property
    def assumptions(self) -> list[str]:
        """Return what the claim takes for granted, a sentence each."""
        if self.adaptive_budget is None:
            parameters = (
                "Every step's noise, sampling and number are taken as fixed before the first release. Where the end "
                "depended on what was released, what holds is the budget, or the cost of all the steps planned."
            )
        else:
            budget = self.adaptive_budget
            parameters = (
                "The figure takes every step's parameters as fixed before the first release. If they were chosen from "
                f"earlier releases, what holds is the adaptive budget, ε = {rounded_up(budget.epsilon)} at δ = "
                f"{_three_figures(budget.delta)}, provided that it was fixed, and guarded the ledger, before the first."
            )
        return [
            parameters,
            "The number of records is taken as public.",
            _EXACT if self.composition.discrete else _FLOATING,
        ]

    def describe(self) -> str:
        """The claim with what is released and what is assumed, a line each."""
        return "\n".join([f"{self}.", f"Released: {self.released}.", *self.assumptions])

    def curve(self, epsilons: Sequence[float]) -> list[float]:
        """An upper bound on δ at each ε."""
        method = find(self.accountant)
        if self.group > 1:
            return [method.group(self.composition, self.group, epsilon=epsilon).upper for epsilon in epsilons]
        return method.deltas(self.composition, epsilons)

    def attack_power(self, false_positive_rates: Sequence[float]) -> list[float]:
        """The largest true-positive rate any membership attack can have at each false-positive rate.

        For every (ε, δ) of the curve a test obeys TPR <= e^ε FPR + δ and 1 - TPR >= e^-ε (1 - δ - FPR)
        (Kairouz, Oh & Viswanath 2015); the least of these bounds over a grid of ε is a bound.
        """
        reach = max(2 * self.epsilon, 0.1)
        epsilons = [reach * i / 24 for i in range(25)]
        return attack_bounds(list(zip(epsilons, self.curve(epsilons), strict=True)), false_positive_rates)

    def gdp_estimate(self) -> float:
        """μ of the Gaussian mechanism with this ε at this δ: an estimate to compare by, not a bound."""
        if not 0 < self.delta < 1:
            raise ValueError(f"delta is {self.delta:g}; a Gaussian mechanism to compare by has one in (0, 1).")
        low, high = 0.0, 1.0
        while gaussian.epsilon(high, self.delta) < self.epsilon:
            low, high = high, 2 * high
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if gaussian.epsilon(middle, self.delta) < self.epsilon else (low, middle)
        return high


def attack_bounds(curve: Sequence[tuple[float, float]], false_positive_rates: Sequence[float]) -> list[float]:
    """`Guarantee.attack_power` from (ε, δ) pairs already known to hold; fewer pairs give a larger bound."""
    powers = []
    for fpr in false_positive_rates:
        if not 0 <= fpr <= 1:
            raise ValueError(f"false-positive rate is {fpr!r}; it must be in [0, 1].")
        bounds = [1.0]
        for epsilon, delta in curve:
            bounds.append(math.exp(min(epsilon, 700.0)) * fpr + delta)
            bounds.append(1 - math.exp(-epsilon) * (1 - delta - fpr))
        powers.append(max(min(bounds), fpr))
    return powers


def rounded_up(value: float, digits: int = 2) -> str:
    """``value`` with at least ``digits`` decimals and three figures, never rounded below the bound it is.

    >>> rounded_up(1.2345), rounded_up(0.012341), rounded_up(2.0)
    ('1.24', '0.0124', '2.00')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:.{digits}f}"
    decimals = max(digits, 2 - math.floor(math.log10(abs(value))))
    return f"{_up(value, decimals):f}"


def _three_figures(value: float) -> str:
    if not 0 < value < math.inf:
        return f"{value:g}"
    return f"{float(_up(value, 2 - math.floor(math.log10(value)))):.3g}"


def _up(value: float, decimals: int) -> Decimal:
    """Rounded up, taking the shortest decimal that is ``value`` for exact: 2.0 is 2.00 and 0.1 is 0.10."""
    with localcontext(prec=700):
        return Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-decimals), ROUND_CEILING)


def account(
    ledger: Ledger,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    accountant: str = "pld",
    budget: Budget | AdaptiveBudget | None = None,
    group: int = 1,
) -> Guarantee:
    """The guarantee of what a ledger lists: ε for a given δ, or δ for a given ε, for ``group`` records together.

    Reading changes nothing; the same ledger can be accounted again, by another accountant, years later. With the
    ``budget`` that guarded it, the guarantee says what holds if parameters were chosen on the way.
    """
    found = guarantee(ledger.entries, ledger.header, delta=delta, epsilon=epsilon, accountant=accountant, group=group)
    if (
        not isinstance(budget, AdaptiveBudget) or found.composition.slack or group > 1
    ):  # slack has no proof under an adaptive one
        return found
    fits = fits_adaptively(ledger.entries, ledger.header.adjacency, budget)
    return replace(found, adaptive_budget=budget) if fits else found


def guarantee(
    entries: Iterable[tuple[ev.Step, int]],
    header: ev.Header,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    accountant: str = "pld",
    group: int = 1,
) -> Guarantee:
    """The guarantee of steps with their counts, done or planned, for ``group`` records together."""
    if (delta is None) == (epsilon is None):
        raise ValueError("give either delta, to get epsilon, or epsilon, to get delta.")
    entries = list(entries)
    for step, _ in entries:
        check_unit(header, step)
    composition = compose(entries, header.adjacency, group=max(group, 1))
    method, lower = find(accountant).used(composition), None
    if delta is not None:
        check_delta(delta)
        together = group != 1
        found = method.group(composition, group, delta=delta) if together else method.epsilon(composition, delta)
        epsilon, lower = found.upper, found.lower
    else:
        assert epsilon is not None
        check_epsilon(epsilon)
        together = group != 1
        found = method.group(composition, group, epsilon=epsilon) if together else method.delta(composition, epsilon)
        delta = found.upper
    if not math.isfinite(epsilon):
        raise ValueError(
            f"epsilon is not finite at delta {delta:g} by the {method.name} accountant: nothing is promised."
        )
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        epsilon_lower=lower,
        accountant=method.name,
        unit=header.unit,
        adjacency=header.adjacency.value,
        sampling=describe_sampling(_samplings(entries)),
        secure_randomness=header.secure_randomness,
        group=group,
        composition=composition,
    )


_POLICIES: dict[type, str] = {
    ev.Everyone: "no sampling",
    ev.Poisson: "Poisson",
    ev.TruncatedPoisson: "Poisson, cut to a largest size",
    ev.OwnedPoisson: "Poisson, records bounded by owner",
    ev.FixedSize: "fixed size without replacement",
    ev.Shuffled: "shuffled (no amplification claimed)",
    ev.Allocated: "random allocation",
    ev.CyclicPoisson: "cyclic Poisson",
}


def _samplings(entries: Iterable[tuple[ev.Step, int]]) -> Iterator[ev.Sampling]:
    """How records were sampled in each step; for a selection, in the steps of its runs."""
    for step, _ in entries:
        chosen = [query for query in step.queries if isinstance(query, ev.Selection)]
        for query in chosen:
            yield from _samplings(query.candidate)
        if len(chosen) < max(len(step.queries), 1):
            yield step.sampling


def describe_sampling(samplings: Iterable[ev.Sampling]) -> str:
    """The policies in words, each once."""
    names = {_POLICIES[type(sampling)] for sampling in samplings}
    return " + ".join(sorted(names)) if names else "nothing released"
