"""The best of a random number of runs, by the privacy profile of one run instead of its Rényi divergences.

**Theorem.** Let Q and Q' be the laws of one run on neighbours, each ordered by its score (ties are broken by a uniform
number that is drawn with every run, which changes no profile), and let δ(ε) bound both H_ε(Q, Q') and H_ε(Q', Q),
where H_ε(P, P') = sup_S P(S) - e^ε P'(S). Let f be the generating function of K, the number of runs, and A, A' the
laws of the best run. Then

    H_ε(A, A') <= E[K] · δ(ε - c),   c = log sup f'(1 - t) / f'(1 - t'),

the supremum being over all pairs t, t' in [0, 1] with t' <= e^a t + δ(a) for every a.

**Proof.** The greatest of K independent runs lies in dy with probability E[K F(y)^(K-1)] Q(dy) = f'(F(y)) Q(dy), F(y)
being the chance that one run ranks below y, and alike for A'. With t = 1 - F(y) and t' = 1 - F'(y), two probabilities
of one event, t' <= e^a t + δ(a) for every a, so f'(F(y)) <= e^c f'(F'(y)). Hence

    A(dy) - e^ε A'(dy) <= f'(F(y)) (Q(dy) - e^(ε - c) Q'(dy)) <= E[K] (Q(dy) - e^(ε - c) Q'(dy))_+,

since f' grows up to f'(1) = E[K]. Integrate. Where K may be 0, "no run" has the same chance under both and adds nothing
for ε >= 0. ∎

*Truncated negative binomial*: f'(x) is proportional to (1 - (1-γ) x)^-(1+η), so
c = (1+η) log sup (γ + (1-γ) t') / (γ + (1-γ) t). *Poisson* of mean μ: f'(x) = μ e^(-μ (1-x)), so
c = μ sup (t' - t) <= μ δ(0).
(Koskela, Redberg & Wang 2024 prove this with one a for all t, so that c is (1+η) log(e^a + (1-γ) δ(a) / γ); taking the
best a for each t is never larger.)

Each line t' = e^a t + δ(a) bounds t' from above, and so does t' = 1. Between two corners of their lower envelope the
quotient is that of two linear functions of t, monotone: its supremum is found at the corners, which are among the
crossings of any two lines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from tacit.accounting.composition import Best, Composition, Gaussian, Interval, Policy, Term
from tacit.accounting.effort import OutOfReach
from tacit.accounting.pld import Pld
from tacit.accounting.rdp import Rdp
from tacit.accounting.selection import mean_trials
from tacit.accounting.tail import check_delta, check_epsilon
from tacit.ledger.events import Selection

_LINES = 32
_MARGIN = 1 + 1e-9


def only_selection(composition: Composition) -> Best | None:
    """Return the selection that is all of a composition, if its runs have a privacy profile here."""
    if len(composition.terms) != 1:
        return None
    ((term, count),) = composition.terms
    if count != 1 or not isinstance(term.base, Best):
        return None
    candidate = term.base.candidate
    inner = any(isinstance(each.base, Best) or each.policy is Policy.ALLOCATED for each, _ in candidate.terms)
    return None if inner or candidate.slack or candidate.discrete or not _ordered(candidate) else term.base


def _ordered(candidate: Composition) -> bool:
    """Return True if of any two terms one dominates the other.

    A run may take the declared terms in an order that depends on its releases. If the terms are ordered, each step can
    be given one of its own for good when it is taken, and the run is a post-processing of all of them together. For
    terms that cannot be compared there is no proof here that profiles, and not only Rényi divergences, add up.
    """
    terms = [term for term, _ in candidate.terms]
    return all(dominates(one, other) or dominates(other, one) for one, other in combinations(terms, 2))


def dominates(costly: Term, term: Term) -> bool:
    """Return True if ``term`` is ``costly`` through a channel that does not know the data, so that it costs no more.

    For a Gaussian sum: with more noise, add the difference. At a lower Poisson rate q < q', with chance 1 - q/q' put
    the answer without the record in place of the given one; for several records of an owner half-lines are best against
    their mixture, and more of it lies beyond any point if the rate or their number grows, so that no hockey-stick
    divergence falls and there is a channel (Blackwell). Any sample costs at most what all records cost.
    """
    if costly == term:
        return True
    if not isinstance(costly.base, Gaussian) or not isinstance(term.base, Gaussian):
        return False
    if term.base.noise_multiplier < costly.base.noise_multiplier or term.members > costly.members:
        return False
    same = costly.policy is term.policy
    rarer = same and costly.policy is Policy.POISSON and term.rate <= costly.rate
    return costly.policy is Policy.ALWAYS or rarer or (same and costly.rate == term.rate and costly.taken >= term.taken)


@dataclass(frozen=True)
class Selected:
    """The pld accountant for the best of a random number of runs and nothing else.

    The Rényi bound holds as well and is taken where it is lower. No lower bound is claimed.
    """

    method: Pld
    name: str = "pld"

    def epsilon(self, composition: Composition, delta: float) -> Interval:
        best, share = _best(composition), check_delta(delta)
        share /= mean_trials(best.selection) * _MARGIN
        upper = Rdp().epsilon(composition, delta).upper
        with suppress(OutOfReach):  # where the profile takes more effort than a search may, rdp answers
            own = self.method.epsilon(best.candidate, share).upper if share < 1 else 0.0
            upper = min(upper, own + _stretch(best, self.method))
        return Interval(upper)

    def delta(self, composition: Composition, epsilon: float) -> Interval:
        return Interval(self.deltas(composition, [epsilon])[0])

    def deltas(self, composition: Composition, epsilons: Sequence[float]) -> list[float]:
        """An upper bound on δ at each ε. Where ε - c < 0, H_ε(Q, Q') = 1 - e^ε + e^ε H_-ε(Q', Q)."""
        best = _best(composition)
        renyi = [min(Rdp().delta(composition, epsilon).upper, 1.0) for epsilon in epsilons]
        with suppress(OutOfReach):
            return [min(pair) for pair in zip(renyi, self._profiled(best, epsilons), strict=True)]
        return renyi

    def _profiled(self, best: Best, epsilons: Sequence[float]) -> list[float]:
        left = [check_epsilon(epsilon) - _stretch(best, self.method) for epsilon in epsilons]
        mean = mean_trials(best.selection) * _MARGIN
        found = self.method.deltas(best.candidate, [abs(each) for each in left])
        bounds = []
        for rest, own in zip(left, found, strict=True):
            upper = own if rest >= 0 else -math.expm1(rest) + math.exp(rest) * own
            bounds.append(mean * upper)
        return bounds


def _best(composition: Composition) -> Best:
    found = only_selection(composition)
    assert found is not None
    return found


@lru_cache(maxsize=256)
def _stretch(best: Best, method: Pld) -> float:
    chosen = best.selection
    if chosen.trials == "poisson":
        return stretch(chosen, [0.0], method.deltas(best.candidate, [0.0]))
    assert chosen.gamma is not None
    reach = method.epsilon(best.candidate, min(1e-3 * chosen.gamma, 1e-3)).upper
    epsilons = [reach * number / (_LINES - 1) for number in range(_LINES)]
    return stretch(chosen, epsilons, method.deltas(best.candidate, epsilons))


def stretch(selection: Selection, epsilons: Sequence[float], deltas: Sequence[float]) -> float:
    """Return an upper bound on c of the theorem, from points (ε, δ) of the profile of one run."""
    if selection.trials == "poisson":
        return mean_trials(selection) * min(deltas[list(epsilons).index(0.0)], 1.0) * _MARGIN
    assert selection.eta is not None and selection.gamma is not None
    gamma = selection.gamma
    slopes = np.concatenate([np.exp(np.minimum(epsilons, 700.0)), [0.0]])
    starts = np.concatenate([np.minimum(deltas, 1.0), [1.0]])
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = (starts[:, None] - starts[None, :]) / (slopes[None, :] - slopes[:, None])
    corners = np.unique(np.concatenate([crossings[(crossings > 0) & (crossings < 1)], [0.0, 1.0]]))
    other = np.min(slopes[:, None] * corners[None, :] + starts[:, None], axis=0)
    ratio = float(np.max((gamma + (1 - gamma) * other) / (gamma + (1 - gamma) * corners)))
    return (1 + selection.eta) * math.log(max(ratio, 1.0) * _MARGIN)
