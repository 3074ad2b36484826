"""Private boosting from its first look to the model, stage by stage; after each it can be interrupted."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.ledger import Ledger
from tacit.randomness import Source
from tacit.recipes.interrupts import interrupts
from tacit.tables.boosting.cells import Cells
from tacit.tables.boosting.loss import Array, loss_for
from tacit.tables.boosting.plan import CYCLES, STAGES, BoostSettings, schedule
from tacit.tables.boosting.rounds import Boosting, Fitted
from tacit.tables.boosting.shapes import Shapes, Term
from tacit.tables.kept import Kept
from tacit.tables.split import Progress

_NAME = "boosting"


def boost(
    cells: Cells,
    classes: int,
    *,
    noise_multiplier: float,
    chosen: BoostSettings,
    ledger: Ledger,
    source: Source,
    progress: Progress | None = None,
    kept: Kept | None = None,
) -> Shapes:
    """Return a boosted model of a target with so many ``classes``, 0 for a number in [-1, 1].

    ``noise_multiplier`` is that of one Gaussian sum that costs as much as all looks together, ``chosen`` says
    how many pairs there are at most, and how many cells a column has in one.

    Formal guarantee: the record is a row. To each sum it adds one vector, of norm at most the sum's clip norm, in one
    cell, or in one cell of each pair. Each sum is in the ledger, with its noise, before it is computed. See `schedule`
    for the whole. The number of records is taken to be public.

    What was released is ``kept`` after every stage, and a run that was interrupted goes on after the last one. Ctrl-C
    finishes the stage in hand; a second one interrupts at once, and what that stage was charged stays charged.
    """
    loss, kept = loss_for(classes), kept or Kept()
    work = Boosting(cells, loss, schedule(noise_multiplier, len(cells.axes)), ledger, source)
    state = _State.restored(kept, work) or _State()
    done, steps = 0, CYCLES * (2 * len(cells.axes) + chosen.most_pairs)

    def told() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress("training", done, steps)

    usual = float(np.mean([axis.size for axis in cells.axes]))
    with interrupts() as asked:
        for name in STAGES[state.stage :]:
            done = steps * state.stage // len(STAGES)
            if name == "begin":
                state.intercept, state.columns = work.begin()
            elif name == "columns":
                work.cycle(name, state.columns, usual, told)
            elif name == "pairs":
                paired = chosen.most_pairs and len(state.columns) > 1
                state.pairs = work.pairs(state.columns, chosen.pair_bins, chosen.most_pairs) if paired else []
            else:
                sizes = [one.term.cells for one in state.pairs]
                width = float(np.mean(sizes)) ** 0.75 if sizes else usual
                work.cycle(name, [*state.pairs, *state.columns], width, told)
            state.stage += 1
            kept.save(_NAME, state.facts())
            if asked:
                raise KeyboardInterrupt
    if progress is not None:
        progress("training", steps, steps)
    every = [*state.columns, *state.pairs]
    shapes = Shapes(cells.axes, [one.term for one in every], loss.outputs)
    shapes.fill(state.intercept, [one.shape for one in every], [one.strength() for one in every])
    return shapes


def stage_kept(kept: Kept) -> int:
    """Return how many stages are done; 0 if none was kept."""
    facts = kept.load(_NAME)
    return 0 if facts is None else int(facts["stage"])


class _State:
    """How far boosting is, and what was released and made of it so far."""

    def __init__(self) -> None:
        self.stage = 0
        self.intercept: Array = np.zeros(0)
        self.columns: list[Fitted] = []
        self.pairs: list[Fitted] = []

    def facts(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {
            "stage": self.stage,
            "intercept": self.intercept.tolist(),
            "columns": [_plain(one) for one in self.columns],
            "pairs": [_plain(one) for one in self.pairs],
        }

    @classmethod
    def restored(cls, kept: Kept, work: Boosting) -> _State | None:
        """Return the state that was kept, with the records' scores computed again; None if there is none."""
        facts = kept.load(_NAME)
        if facts is None:
            return None
        state = cls()
        state.stage, state.intercept = int(facts["stage"]), np.array(facts["intercept"])
        state.columns, state.pairs = ([_fitted(one, work) for one in facts[name]] for name in ("columns", "pairs"))
        work.scores += state.intercept.astype(np.float32)
        for one in [*state.columns, *state.pairs]:
            work.add(one.term, one.shape)
        return state


_ARRAYS = ("counts", "bend", "shape", "seen", "measured")


def _plain(one: Fitted) -> dict[str, Any]:
    arrays = {name: getattr(one, name).tolist() for name in _ARRAYS}
    groups = [list(group) for group in one.term.groups]
    return {"places": list(one.term.places), "groups": groups, "looks": one.looks, **arrays}


def _fitted(facts: dict[str, Any], work: Boosting) -> Fitted:
    term = Term(places=tuple(facts["places"]), groups=tuple(tuple(group) for group in facts["groups"]))
    arrays = {name: np.array(facts[name]) for name in _ARRAYS}
    found = Fitted(term, arrays["counts"], arrays["bend"], work.priors(term), arrays["shape"], arrays["seen"])
    found.measured, found.looks = arrays["measured"], float(facts["looks"])
    return found
