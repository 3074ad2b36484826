"""Choosing among settings: by one run for each of them, or by the best of a random number of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tacit.accounting import Filter
from tacit.ledger import AdaptiveBudget, Budget, Everyone, Header, Ledger, Step
from tacit.randomness import SecureSource, Source
from tacit.tuning.cover import Cover, TrialOverrun
from tacit.tuning.trials import GROUP, Base, Trials

S = TypeVar("S")
T = TypeVar("T")
Trial = Callable[[S, Ledger], tuple[Any, T]]
"""One run: from a setting and the ledger to write to, to a score (a number; more is better) and what to release.

The score is part of what is paid for. It must come from public data, or from the records by a query on that ledger.
"""


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[S, T]):
    """The outcome of one run. All three fields may be released."""

    setting: S
    score: float
    output: T


class TrialFailed(RuntimeError):
    """A run failed. Nothing is released and the selection stays charged."""


class NoTrial(RuntimeError):
    """The number of runs was drawn as 0, which a Poisson number can be. Nothing was run; it is charged all the same."""


def choose(
    candidates: Sequence[S],
    trial: Trial[S, T],
    *,
    trials: Trials,
    base: Base,
    ledger: Ledger,
    budget: Budget | AdaptiveBudget | None = None,
    source: Source | None = None,
) -> Outcome[S, T]:
    """The best of a random number of runs, each with a setting drawn from ``candidates`` (Papernot & Steinke 2021).

    In this order: one `Selection` event with ``base`` goes into ``ledger`` (``budget`` may refuse it); the number of
    runs K and their settings are drawn; the runs follow, each on a ledger of its own, in memory, that lets through
    what ``base`` declares and nothing else; the run with the highest score is returned.

    **Formal guarantee.** Let Q be the mechanism "draw a setting uniformly, run ``trial``, give setting, score and
    output". Every run costs at most ``base``, so Q does, at each ε and at each Rényi order: a mixture over settings
    that do not depend on the records costs no more than the worst. The K runs are independent copies of Q, K does not
    depend on the records, and what is returned is the greatest by score, the first among equals, which is as random as
    a draw among them. That is the mechanism of Theorem 2 (truncated negative binomial) and Theorem 6 (Poisson), whose
    cost the accountants read from the event: pld by the privacy profile of one run (`tacit.accounting.selected`), rdp
    by the theorems. A run that fails counts as the greatest of all: the outcome is then the failure and nothing else.

    **What may be looked at**: the outcome, when this function has returned. An attacker must not learn
    K, the other runs, their scores or their settings; those are gone when this returns, unless ``trial`` kept
    them. Its logs, a traceback and the running time (it tells K) are for the one who trains.

    **What the caller owes**: ``trial`` touches the records through the ledger it is given and in no other way, takes
    nothing over from earlier runs, and its score is public or paid for on that ledger.
    """
    if not len(candidates):
        raise ValueError("candidates is empty; give at least one setting.")
    header = ledger.header
    source = source or SecureSource()
    if budget is not None:
        ledger.guard(Filter(budget))
    receipt = ledger.record(Step(Everyone(unit=header.unit), (trials.event(base),)), secure=source.secure)
    picks = source.integers(len(candidates), trials.draw(source))
    best: Outcome[S, T] | None = None
    for pick in picks:
        outcome = _one(candidates[int(pick)], trial, base, header)
        if best is None or outcome.score > best.score:
            best = outcome
    receipt.spend(GROUP)
    if best is None:
        raise NoTrial("the number of trials was drawn as 0, so there is nothing to choose from; it stays charged.")
    return best


def _one(setting: S, trial: Trial[S, T], base: Base, header: Header) -> Outcome[S, T]:
    own = Ledger(
        Header(adjacency=header.adjacency, unit=header.unit, secure_randomness=header.secure_randomness, purpose=GROUP)
    )
    cover = Cover(base, header.adjacency)
    own.guard(cover)
    try:
        score, output = trial(setting, own)
        value = _score(score)
    except TrialOverrun:
        raise
    except Exception as error:
        raise TrialFailed(f"A trial failed ({type(error).__name__}); nothing is released.") from error
    finally:
        own.close()
    if cover.broken:
        raise TrialOverrun("a trial carried on after a step outside its declared base; nothing is released.")
    if not len(own):
        raise TrialFailed("A trial wrote nothing to the ledger it was given; pass that one to make_private.")
    return Outcome(setting=setting, score=value, output=output)


def try_all(
    candidates: Sequence[S],
    trial: Trial[S, T],
    *,
    ledger: Ledger,
    budget: Budget | AdaptiveBudget | None = None,
    accountant: str = "pld",
) -> list[Outcome[S, T]]:
    """One run for each of ``candidates``, all charged to the one ``ledger``; the outcomes, best first.

    **Formal guarantee**: composition. Every step of every run is in the ledger, so all runs, scores and models may be
    looked at and released, and ``trial`` may learn from earlier ones (under an `AdaptiveBudget`, if its noise,
    sampling or length does). A score from records must itself be paid for on the ledger.
    """
    if not len(candidates):
        raise ValueError("candidates is empty; give at least one setting.")
    if budget is not None:
        ledger.guard(Filter(budget, accountant=accountant))
    outcomes = []
    for setting in candidates:
        before = len(ledger)
        score, output = trial(setting, ledger)
        if len(ledger) == before:
            raise ValueError("a trial wrote nothing to the ledger; pass the ledger it is given to make_private.")
        outcomes.append(Outcome(setting=setting, score=_score(score), output=output))
    return sorted(outcomes, key=lambda outcome: outcome.score, reverse=True)


def _score(value: Any) -> float:
    """A number to compare by; what is not a number comes last."""
    score = float(value)
    return -math.inf if math.isnan(score) else score
