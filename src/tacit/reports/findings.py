"""The findings of a report, from the ledger alone by accounting again; run.json adds names, accuracy and its claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.accounting import ACCOUNTANTS, Composition, Guarantee, Interval, compose, guarantee
from tacit.accounting.accountants import Slackened
from tacit.accounting.composition import Accountant
from tacit.accounting.effort import SEARCH, limited
from tacit.accounting.guarantee import attack_bounds, rounded_up
from tacit.accounting.pld import Pld
from tacit.ledger import Ledger, Step
from tacit.reports.events import inside
from tacit.reports.said import Said, clean

RUN, LEDGER = "run.json", "ledger.jsonl"
DEFAULT_DELTA = 1e-5
# For the charts: upper bounds still, within a tenth of a percent or so, and several times as quick as the claim's.
_CHARTS = Slackened(Pld(tolerance=1e-3))
_LABELS = {
    "pld": "privacy loss distribution",
    "rdp": "Rényi accountant",
    "moments": "moments accountant (λ ≤ 32)",
    "strong": "strong composition",
}
# The accountants that may make the claim, the tightest first.
_CLAIMANTS = ("pld", "rdp", "moments")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run: its ledger, its run.json (nothing, for a bare ledger), and where they are."""

    place: Path
    ledger: Ledger
    said: Said

    @classmethod
    def load(cls, path: Path) -> Run:
        """From the directory of a run, or from a ledger file alone."""
        if not path.is_dir():
            return cls(place=path, ledger=Ledger.load(path), said=Said())
        said = Said.load(path / RUN)
        return cls(place=path, ledger=Ledger.load(path / LEDGER), said=said)

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.place / RUN, self.place / LEDGER) if self.place.is_dir() else (self.place,)


@dataclass(frozen=True, kw_only=True)
class Spending:
    """ε after some numbers of steps by one accountant; no points and a reason where it has no proof."""

    accountant: str
    label: str
    points: tuple[tuple[int, float], ...] = ()
    refusal: str = ""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The computed statements of a report."""

    delta: float
    guarantee: Guarantee | None
    spending: tuple[Spending, ...]
    curve: tuple[tuple[float, Interval], ...]
    records: int | None
    alarms: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def epsilon(self) -> float | None:
        return None if self.guarantee is None else self.guarantee.epsilon

    @property
    def private(self) -> bool:
        return self.guarantee is not None and self.guarantee.secure_randomness

    def attack_power(self, false_positive_rates: Sequence[float]) -> list[float]:
        """The largest true-positive rate of any membership attack at each false-positive rate."""
        return attack_bounds([(epsilon, found.upper) for epsilon, found in self.curve], false_positive_rates)


def find(run: Run, *, delta: float | None = None) -> Findings:
    """Account for the ledger again. δ is the one given, else the one run.json names, else `DEFAULT_DELTA`."""
    book, said = run.ledger, run.said
    named = (delta, said.number("result", "delta"), said.number("budget", "delta"), DEFAULT_DELTA)
    delta = next(value for value in named if value is not None)
    found, refusals = _claim(book, delta)
    spending = _spending(book, delta, refusals)
    curve = _curve(found) if found is not None else ()
    records = _records(book, said)
    return Findings(
        delta=delta,
        guarantee=found,
        spending=spending,
        curve=curve,
        records=records,
        alarms=tuple(_alarms(run, found, delta, refusals, records)),
        remarks=tuple(_remarks(run)),
    )


def _claim(book: Ledger, delta: float) -> tuple[Guarantee | None, dict[str, str]]:
    """Account by the tightest accountant that has a proof; also return why tighter ones have none."""
    refusals: dict[str, str] = {}
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}; it must be in (0, 1): give one with --delta.")
    for name in _CLAIMANTS:
        try:
            return guarantee(book.entries, book.header, delta=delta, accountant=name), refusals
        except (ValueError, ArithmeticError) as error:
            refusals[name] = clean(str(error))
    return None, refusals


def _spending(book: Ledger, delta: float, refusals: dict[str, str]) -> tuple[Spending, ...]:
    try:
        whole = compose(book.entries, book.header.adjacency)
        marks = _marks(len(book), _points(whole, 12))
        prefixes = [(mark, compose(first(book.entries, mark), book.header.adjacency)) for mark in marks]
    except ValueError as error:
        return tuple(Spending(accountant=name, label=label, refusal=str(error)) for name, label in _LABELS.items())
    found = []
    for name, label in _LABELS.items():
        method = _method(name)
        try:
            if name in refusals:
                raise ValueError(refusals[name])
            if name == "pld" and _CHARTS.used(whole).name != name:
                raise ValueError(
                    "the lattice of the discrete noise is too coarse for it; the Rényi accountant answers."
                )
            points = tuple((mark, method.epsilon(prefix, delta).upper) for mark, prefix in prefixes)
            found.append(Spending(accountant=name, label=label, points=((0, 0.0), *points)))
        except (ValueError, ArithmeticError) as error:
            found.append(Spending(accountant=name, label=label, refusal=str(error)))
    return tuple(found)


def _points(composition: Composition, most: int) -> int:
    """Return the number of points of a chart: fewer where each takes long. The time grows with the kinds of release."""
    kinds = len(composition.terms)
    return most if kinds <= 8 else most // 2 if kinds <= 40 else 2


def _marks(steps: int, points: int) -> list[int]:
    """Numbers of steps to account for: the first, where a full-batch release may be, and more of the early ones."""
    return sorted({1, *(max(round(steps * (i / points) ** 1.5), 1) for i in range(1, points + 1))} if steps else set())


def first(entries: Sequence[tuple[Step, int]], steps: int) -> list[tuple[Step, int]]:
    """The entries that the first ``steps`` steps are."""
    taken: list[tuple[Step, int]] = []
    for step, count in entries:
        if steps <= 0:
            break
        taken.append((step, min(count, steps)))
        steps -= count
    return taken


def _method(name: str) -> Accountant:
    return _CHARTS if name == "pld" else ACCOUNTANTS[name]


def _curve(found: Guarantee) -> tuple[tuple[float, Interval], ...]:
    """δ at ε from 0 to twice the claim's; the claim itself is one of the points.

    They are closer together where ε is small, which is what bounds attacks. A point that does not lower δ is left out:
    a smaller ε has the same δ already.
    """
    method, reach = _method(found.accountant), 2 * max(found.epsilon, 0.05)
    points = _points(found.composition, 16)
    places = sorted({found.epsilon, *(reach * (i / points) ** 1.5 for i in range(points + 1))})
    curve: list[tuple[float, Interval]] = []
    with limited(SEARCH):  # points of a chart: bounds all of them, and as close as a search needs
        for epsilon in places:
            delta = Interval(found.delta) if epsilon == found.epsilon else method.delta(found.composition, epsilon)
            if not curve or delta.upper < curve[-1][1].upper:
                curve.append((epsilon, delta))
    return tuple(curve)


def _records(book: Ledger, said: Said) -> int | None:
    """Return the number of records, from the ledger if it has it."""
    counts = {getattr(step.sampling, "records", None) for step, _ in inside(book.entries)} - {None}
    if counts:
        return max(int(count) for count in counts if count is not None)
    named = said.number("dataset", "records")
    return int(named) if named is not None and 1 <= named <= 1e15 else None


def _alarms(
    run: Run, found: Guarantee | None, delta: float, refusals: dict[str, str], records: int | None
) -> list[str]:
    """Return the alarms: sentences to be read before any number."""
    said, alarms = run.said, []
    if not run.ledger.header.secure_randomness:
        alarms.append(
            "NOT PRIVATE. The run was seeded for debugging: anyone who knows or guesses the seed can remove "
            "the noise. No number below protects any record."
        )
    elif said.value("seed") is not None:
        alarms.append(
            "NOT PRIVATE if run.json is right: it names a seed, although the ledger promises secure randomness."
        )
    if found is None:
        reasons = list(dict.fromkeys(refusals.values()))
        alarms.append(f"NO GUARANTEE. No accountant has a proof for the steps in the ledger: {' '.join(reasons)}")
        return alarms
    claimed = said.number("result", "epsilon")
    if claimed is not None:
        at = said.number("result", "delta")
        at = delta if at is None else at
        truth = found.epsilon if at == delta else _epsilon_at(run.ledger, at, found.accountant)
        if truth is None or claimed < truth * (1 - 1e-6):
            proved = "no ε at all" if truth is None else f"ε = {rounded_up(truth)}"
            alarms.append(
                f"WRONG CLAIM. run.json says ε = {claimed:.4g} at δ = {at:.3g}, but the ledger proves {proved} there. "
                "Quote this report, not run.json."
            )
    limit, at = said.number("budget", "epsilon"), said.number("budget", "delta")
    if limit is not None and at == delta and found.epsilon > limit * (1 + 1e-9):
        alarms.append(f"OVER BUDGET. The budget was ε = {limit:.4g}; the ledger comes to {rounded_up(found.epsilon)}.")
    if records is not None and delta >= 1 / records:
        alarms.append(
            f"δ TOO LARGE. δ = {delta:.3g} is not below 1/{records}: publishing one whole record at random "
            "would be allowed. Choose a δ well below one over the number of records."
        )
    audited = said.number("audit", "epsilon_lower")
    if audited is not None and audited > found.epsilon:
        alarms.append(
            f"REFUTED BY ITS AUDIT. The audit found ε of at least {audited:.4g}, more than the ledger's "
            f"{rounded_up(found.epsilon)}: a part of the run did not do what the ledger says."
        )
    elif said.value("audit", "violated") is True:
        alarms.append(
            "REFUTED BY ITS AUDIT. Training with the settings of this run leaked more than its ledger says. "
            "Do not release."
        )
    return alarms


def _epsilon_at(book: Ledger, delta: float, accountant: str) -> float | None:
    try:
        return guarantee(book.entries, book.header, delta=delta, accountant=accountant).epsilon
    except (ValueError, ArithmeticError):
        return None


def _remarks(run: Run) -> list[str]:
    remarks = []
    if run.said.value("finished") is False:
        remarks.append("The run is not finished; this is what it has spent and reached so far.")
    if not run.ledger.entries:
        remarks.append("The ledger is empty: nothing was released.")
    held, named = run.ledger.header.fingerprint, run.said.text("dataset", "fingerprint")
    if held and named and held != named:
        remarks.append("The data set's fingerprint in run.json is not the one in the ledger.")
    remarks += [f"The ledger had been left unfinished by a crash: {note}." for note in run.ledger.notes]
    return remarks
