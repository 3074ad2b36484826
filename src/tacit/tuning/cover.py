"""Check that one run of a selection does no more than was declared when the selection was charged."""

from __future__ import annotations

from tacit.accounting.composition import Composition, Gaussian, Term
from tacit.accounting.entries import compose
from tacit.accounting.selected import dominates
from tacit.ledger import Adjacency, Ledger, Step
from tacit.tuning.trials import Base


class TrialOverrun(RuntimeError):
    """A run would have done more than the selection was charged for. The step was not taken."""


class Cover:
    """A gate for the ledger of one run: lets a step through only if all steps so far are within ``base``.

    Formal guarantee: to each step that was let through belongs a step of ``base`` of its own, as costly or more. So at
    every order the Rényi divergences of the steps taken add up to no more than the base's, whatever the run decides on
    the way (Feldman & Zrnic 2021, Theorem 4.3), and the base is a bound for the run. Where of any two terms of the base
    one dominates the other, the matching can be made step by step (the cheapest term that will do), so that the run is
    a post-processing of the whole base, and the base's privacy profile bounds the run's too.
    """

    def __init__(self, base: Base, adjacency: Adjacency) -> None:
        self._adjacency, self._base = adjacency, compose(base, adjacency)
        self.broken = False
        """True if a step was refused; a run that carries on all the same is not to be trusted."""

    def __call__(self, ledger: Ledger, step: Step) -> None:
        if not covers(self._base, compose([*ledger.entries, (step, 1)], self._adjacency)):
            self.broken = True
            raise TrialOverrun(
                f"step {len(ledger) + 1} of a trial is not in the declared base, by its number, sampling rate or "
                "noise; declare a base that covers every candidate, or let the trial do less."
            )


def covers(base: Composition, done: Composition) -> bool:
    """Return True if every term of ``done`` can be given a term of ``base`` of its own that dominates it.

    Found greedily, so a no may be too strict where noise and sampling rate vary crosswise; a yes is always right.
    """
    left = dict(base.parts)  # neither has slack: parts would refuse
    for term, count in sorted(done.parts, key=_cost, reverse=True):
        for room, _ in sorted(base.parts, key=_cost):
            if dominates(room, term):
                taken = min(count, left[room])
                left[room] -= taken
                count -= taken
        if count:
            return False
    return True


def _cost(part: tuple[Term, int]) -> tuple[float, float]:
    """Roughly: rate first, then noise."""
    term, _ = part
    return term.rate, -term.base.noise_multiplier if isinstance(term.base, Gaussian) else 0.0
