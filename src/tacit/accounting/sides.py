"""The two directions of the neighbouring relation: which pairs of distributions dominate a composition."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.accounting import composition as comp
from tacit.accounting import gaussian
from tacit.accounting.allocation import MOST_SHIFT, Allocated
from tacit.accounting.composition import Composition, Policy, Term, Unproved
from tacit.accounting.losses import (
    Added,
    Base,
    GaussianLoss,
    LaplaceLoss,
    Mirrored,
    Pair,
    Plain,
    Removed,
    Replaced,
    ResponseLoss,
)
from tacit.accounting.rounding import COARSE
from tacit.accounting.tail import MOST_NOISE
from tacit.ledger.events import Adjacency

# A pure loss above this is charged as if it always happened: e^-40 of it does not.
_CERTAIN = 40.0
# A record sampled more rarely is treated as if it were sampled this often: e^loss / rate stays a finite double.
LEAST_RATE = 1e-40
_FEW_KINDS = 4


@dataclass(frozen=True)
class Side:
    """One direction of the neighbouring relation: pairs with counts, a total Gaussian shift, a certain loss."""

    pairs: tuple[tuple[Pair, int], ...]
    shift: float
    certain: float

    @property
    def fine(self) -> bool:
        """True if `tacit.accounting.direct` suits it: Gaussian sums of few kinds, whose losses have no atoms."""
        few = not self.certain and len(self.pairs) <= _FEW_KINDS
        kinds = Removed | Added | Mirrored | Replaced
        return few and all(isinstance(pair.base, GaussianLoss) and isinstance(pair, kinds) for pair, _ in self.pairs)

    @property
    def lattice_pairs(self) -> tuple[tuple[Pair, int], ...]:
        return (*self.pairs, (Plain(GaussianLoss(self.shift)), 1)) if self.shift else self.pairs


def _base(term: Term, factor: int, concrete: bool) -> Base | None:
    """The pair of one release; ``concrete``: one that real neighbours attain, or None where none is known."""
    if isinstance(term.base, comp.Gaussian | comp.Laplace) and concrete and term.base.noise_multiplier > MOST_NOISE:
        return None
    if isinstance(term.base, comp.Gaussian):
        return GaussianLoss(factor / min(term.base.noise_multiplier, MOST_NOISE))
    if isinstance(term.base, comp.Laplace):
        size = factor / min(term.base.noise_multiplier, MOST_NOISE)
        # Several coordinates under one L1 bound: only the pure guarantee is proved here.
        return LaplaceLoss(size) if term.base.dimension == 1 or concrete else ResponseLoss(size)
    if isinstance(term.base, comp.Pure):
        return None if concrete else ResponseLoss(term.base.epsilon)
    if isinstance(term.base, comp.DiscreteGaussian):
        raise Unproved("the pld accountant has no loss distribution for discrete Gaussian noise; use 'rdp'.")
    raise Unproved("the pld accountant has no loss distribution for the best of a random number of runs; use 'rdp'.")


def sides(composition: Composition, *, concrete: bool = False) -> list[Side]:
    """The directions of the neighbouring relation, each with its dominating pairs.

    ``concrete`` gives pairs that some neighbours attain, for lower bounds. Under replace-one these are, for fixed-size
    lots, a record that contributes the opposite of all others and is replaced by one of their kind; for Poisson lots of
    Gaussian sums, a record replaced by its opposite, of Laplace sums, by one that contributes nothing.
    """
    replace = composition.adjacency is Adjacency.REPLACE_ONE
    pairs: tuple[list[tuple[Pair, int]], list[tuple[Pair, int]]] = ([], [])
    certain, squared = 0.0, 0.0
    for term, count in composition.parts:
        poisson = replace and term.policy is Policy.POISSON
        lone = poisson and (concrete or isinstance(term.base, comp.Gaussian))
        base = _base(term, 1 if lone else composition.shift_factor, concrete)
        if base is None or (concrete and term.rate < LEAST_RATE):
            continue
        rate = max(term.rate, LEAST_RATE)
        if term.policy is Policy.ALLOCATED:
            if replace or not isinstance(base, GaussianLoss):
                raise Unproved(f"random allocation of {type(term.base).__name__} has no pair here under replace-one.")
            if base.shift <= MOST_SHIFT:
                used = GaussianLoss(base.shift * (1 - COARSE)) if concrete else base
                for side, added in zip(pairs, (False, True), strict=True):
                    side.append((Allocated(used, term.lots, term.taken, added, concrete), count))
            elif not concrete:
                squared += count * base.shift**2  # at most what the record costs if its lot is known
        elif isinstance(base, GaussianLoss) and term.policy is Policy.ALWAYS:
            squared += count * base.shift**2
        elif isinstance(base, ResponseLoss) and base.epsilon > _CERTAIN and term.policy is Policy.ALWAYS:
            certain += count * base.epsilon
        elif term.policy is Policy.ALWAYS:
            pairs[0].append((Plain(base), count))
            pairs[1].append((Plain(base), count))
        elif poisson and isinstance(base, GaussianLoss):
            pairs[0].append((Replaced(base, rate), count))
            pairs[1].append((Replaced(base, rate), count))
        elif replace and not concrete:
            pairs[0].append((Mirrored(base, rate), count))
            pairs[1].append((Mirrored(base, rate), count))
        else:
            pairs[0].append((Removed(base, rate), count))
            pairs[1].append((Added(base, rate), count))
    both = [Side(tuple(side), math.sqrt(squared), certain) for side in pairs]
    return both[:1] if both[0] == both[1] else both


def basic(composition: Composition) -> float:
    """The sum of the pure losses; infinite as soon as one release is not pure."""
    total = 0.0
    for term, count in composition.parts:
        base = _base(term, composition.shift_factor, concrete=False)
        if isinstance(base, GaussianLoss) or base is None:
            return math.inf
        pure = largest_loss(base)
        total += count * (math.log1p(term.rate * math.expm1(pure)) if pure < 700 else pure)
    return total


def largest_loss(base: Base) -> float:
    """Return the largest value of a bounded loss."""
    assert isinstance(base, LaplaceLoss | ResponseLoss)
    return base.shift if isinstance(base, LaplaceLoss) else base.epsilon


def unsampled_epsilon(side: Side, delta: float) -> float:
    """A bound for losses too large for the lattice: every record in every sample, bounded losses certain.

    By convexity H_a((1-r) Q + r P ‖ Q) <= H_a(P‖Q), and the same with the roles exchanged.
    """
    squared, certain = side.shift**2, side.certain
    for pair, count in side.pairs:
        base = pair.base
        if isinstance(base, GaussianLoss):
            squared += count * (pair.records * base.shift) ** 2
        else:
            certain += count * largest_loss(base)
    return certain + (gaussian.epsilon(math.sqrt(squared), delta) if squared else 0.0)
