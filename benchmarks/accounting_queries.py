"""CPU seconds of queries that are not plain Poisson sampling, over a grid of typical parameters, beside the peers'.

    python benchmarks/accounting_queries.py            prints the tables
    python benchmarks/accounting_queries.py --write    and puts them into docs/benchmarks.md
    python benchmarks/accounting_queries.py --quick    a few points only

Every query is answered in a process of its own, as in benchmarks/accounting.py. dp-accounting is asked where it has an
event for the query; JAX Privacy 2.0.0 puts the same events together for bands on cyclic samples, cut lots and users.
"""

import argparse
import itertools
import math
import statistics

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation

from accounting import PLDAccountant, apart, machine, write
from tacit.accounting import guarantee
from tacit.accounting.composition import Unproved
from tacit.accounting.draft import correlated_gradients, gradients
from tacit.ledger import events as ev
from tacit.mechanisms import BandedToeplitz, SparseInverse

BEGIN, END = "<!-- accounting-queries:begin -->", "<!-- accounting-queries:end -->"
DELTA, RECORDS = 1e-5, 1_000_000
GRID = list(itertools.product((1e-4, 1e-3, 0.01, 0.1), (0.7, 1.0, 4.0), (1_000, 10_000, 100_000)))
TYPICAL = (0.01, 1.0, 10_000)
Point = tuple[float, float, int]
Entry = tuple[ev.Step, int]


def poisson(point: Point) -> list[Entry]:
    rate, noise, steps = point
    return [(ev.Step(ev.Poisson(rate=rate), (gradients(noise),)), steps)]


def owned(point: Point) -> list[Entry]:
    rate, noise, steps = point
    return [(ev.Step(ev.OwnedPoisson(rate=rate, records=RECORDS, most=3), (gradients(noise),)), steps)]


def cut(point: Point) -> list[Entry]:
    rate, noise, steps = point
    expected = RECORDS * rate
    event = ev.TruncatedPoisson(rate=rate, records=RECORDS, most=math.ceil(expected + 9 * math.sqrt(expected) + 9))
    return [(ev.Step(event, (gradients(noise),)), steps)]


def allocated(point: Point, participations: int = 1) -> list[Entry]:
    rate, noise, steps = point
    lots = round(participations / rate)
    epochs = [
        ev.Allocated(lots=lots, epoch=epoch, records=RECORDS, participations=participations)
        for epoch in range(-(-steps // lots))
    ]
    counts = [lots] * (steps // lots) + [steps % lots] * (steps % lots > 0)
    return [(ev.Step(each, (gradients(noise),)), count) for each, count in zip(epochs, counts, strict=True)]


def cyclic(point: Point, strategy: BandedToeplitz | SparseInverse) -> list[Entry]:
    rate, noise, steps = point
    groups = strategy.choices(RECORDS, round(rate * RECORDS))[-1]
    event = ev.CyclicPoisson(groups=groups, rate=rate * groups, block="one")
    return [(ev.Step(event, (correlated_gradients(noise, strategy.fitted(steps, groups, rate * groups)),)), steps)]


def best_of_ten(point: Point) -> list[Entry]:
    chosen = ev.Selection(group="runs", trials="poisson", mean=10.0, candidate=tuple(poisson(point)))
    return [(ev.Step(ev.Everyone(), (chosen,)), 1)]


ADD, REPLACE = ev.Header(), ev.Header(adjacency=ev.Adjacency.REPLACE_ONE)
OWNERS = ev.Header(unit="owner")
QUERIES = {
    "Poisson, replace-one": (poisson, REPLACE, {}),
    "Poisson, δ at ε = 1": (poisson, ADD, {"epsilon": 1.0}),
    "Poisson, groups of 5": (poisson, ADD, {"group": 5}),
    "Poisson, groups of 5, replace-one": (poisson, REPLACE, {"group": 5}),
    "Poisson, owners of 3 records": (owned, OWNERS, {}),
    "Poisson, lots cut": (cut, ADD, {}),
    "allocation, once an epoch": (allocated, ADD, {}),
    "allocation, once an epoch, replace-one": (allocated, REPLACE, {}),
    "allocation, 4 times an epoch": (lambda point: allocated(point, 4), ADD, {}),
    "cyclic, 8 bands": (lambda point: cyclic(point, BandedToeplitz(bands=8)), ADD, {}),
    "cyclic, keys only, 8 groups": (lambda point: cyclic(point, SparseInverse(groups=8)), ADD, {}),
    "best of 10 runs": (best_of_ten, ADD, {}),
}


def dp_answer(name: str, point: Point) -> float | None:
    """Return dp-accounting's ε for the same query, or None where it has no event for it."""
    rate, noise, steps = point
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    gaussian = dp_accounting.GaussianDpEvent
    if name in ("Poisson, groups of 5", "Poisson, owners of 3 records"):
        size = 5 if "5" in name else 3
        chances = [math.comb(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(size + 1)]
        event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(noise, list(range(size + 1)), chances)
    elif name == "Poisson, lots cut":
        (step, _), relation = cut(point)[0], NeighboringRelation.REPLACE_SPECIAL
        event = dp_accounting.TruncatedSubsampledGaussianDpEvent(RECORDS, rate, step.sampling.most, noise)
    elif name == "cyclic, 8 bands":
        _, column = BandedToeplitz(bands=8).fitted(steps, 8, 8 * rate)
        event = dp_accounting.PoissonSampledDpEvent(8 * rate, gaussian(noise / float(np.linalg.norm(column))))
        steps = math.ceil(steps / 8)
    else:
        return None
    return PLDAccountant(relation).compose(event, steps).get_epsilon(DELTA)


def ours(name: str, point: Point) -> tuple[object, float | None]:
    """Return the answer and the CPU seconds of the query alone: the ledger, and its fit, are made before."""
    make, header, settings = QUERIES[name]
    entries = make(point)
    asked = {"delta": DELTA, **settings} if "epsilon" not in settings else settings

    def answer() -> tuple[float, float | None]:
        try:
            found = guarantee(entries, header, **asked)
        except Unproved:
            raise
        except ValueError:  # no finite ε, or so little noise that none is claimed
            return math.inf, None
        return (found.delta, None) if "epsilon" in settings else (found.epsilon, found.epsilon_lower)

    return apart(answer, 30.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the section in docs/benchmarks.md")
    parser.add_argument("--quick", action="store_true", help="a few points only")
    parser.add_argument("--only", help="queries whose names contain this")
    options = parser.parse_args()
    grid = GRID[::7] if options.quick else GRID
    lines = [
        f"{len(grid)} points: q = 1e-4 … 0.1, σ = 0.7 … 4, T = 1,000 … 100,000 steps, δ = {DELTA:g}; CPU s of one "
        f"query, each in a new process. Typical: q = {TYPICAL[0]:g}, σ = {TYPICAL[1]:g}, T = {TYPICAL[2]:,}.\n",
        "| query | CPU s, median / largest | above 1 s | typical: ε, certified | CPU s | dp-accounting's ε | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in QUERIES:
        if options.only and options.only not in name:
            continue
        found = {point: ours(name, point) for point in grid if not (name.startswith("cyclic") and point[0] > 0.05)}
        slow = {point: used for point, (_, used) in found.items() if used is None or used > 1}
        times = [used for _, used in found.values() if used is not None]
        answer, used = ours(name, TYPICAL)
        own = answer if used is None else _certified(answer)
        theirs, their_time = apart(lambda name=name: dp_answer(name, TYPICAL), 60.0)
        peer = (
            "– | –" if theirs is None else f"{theirs} | –" if their_time is None else f"{theirs:.4g} | {their_time:.2f}"
        )
        shown = f"{len(slow)}" if len(slow) != 1 else f"1 {next(iter(slow))}"
        lines.append(
            f"| {name} | {statistics.median(times):.2f} / {max(times):.2f} | {shown} | {own} | "
            f"{0.0 if used is None else used:.2f} | {peer} |"
        )
        print(lines[-1], slow if slow else "", flush=True)
    text = "\n".join(["### Other samplings, units and mechanisms\n", machine(), *lines])
    if options.write:
        write(text, BEGIN, END)


def _certified(answer: tuple[float, float | None]) -> str:
    upper, lower = answer
    return f"{upper:.4g}" if lower is None else f"{lower:.4g} – {upper:.4g}"


if __name__ == "__main__":
    main()
