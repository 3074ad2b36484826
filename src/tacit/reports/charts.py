"""The charts of a report, with the sentence under each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from tacit.accounting.guarantee import rounded_up
from tacit.ledger import GaussianSum, LaplaceSum, Step
from tacit.reports import svg
from tacit.reports.findings import Findings, Run
from tacit.reports.html_table import details, table
from tacit.reports.said import LARGEST, SMALLEST, Said, clean, number
from tacit.reports.statement import groups, paid_for, percent, up
from tacit.reports.svg import Axis, Series

RATES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
_MOST_POINTS = 300
_MOST_LINES = svg.STYLES

Point = tuple[float, float]


def privacy(run: Run, facts: Findings) -> list[str]:
    """Return the charts that need the ledger alone: ε over the steps, δ(ε), and the best attack."""
    found = [_spending(facts)] if run.ledger.entries else []
    if facts.curve and facts.epsilon:
        found += [_curve(facts), _attack(facts), _powers(facts)]
    return found


def training(run: Run) -> list[str]:
    """Noise and clip norm from the ledger; accuracy, loss and learning rate as run.json has them."""
    history = run.said.objects("history")
    candidates = [
        _metrics(run, history, accuracy=True),
        _metrics(run, history, accuracy=False),
        *_settings(run),
        _learning_rate(history),
        _norms(run),
    ]
    return [figure for figure in candidates if figure]


def _spending(facts: Findings) -> str:
    proved = [one for one in facts.spending if one.points]
    ends = {one.accountant: one.points[-1][1] for one in proved}
    # The strong composition of paper 1 is often ten times the others: it may leave the chart at the top.
    tight = [end for name, end in ends.items() if name != "strong"]
    high = 1.25 * max(tight) if tight and max(tight) > 0 and max(ends.values()) > 2.5 * max(tight) else None
    series, rows = [], []
    for style, one in enumerate(facts.spending):
        if one.points:
            end = rounded_up(ends[one.accountant])
            label = f"{one.label}: {end}" + (" (leaves the chart)" if high and ends[one.accountant] > high else "")
            series.append(Series(label=label, points=one.points, style=style))
            rows.append((one.label, *(rounded_up(value) for _, value in _few(one.points))))
        else:
            series.append(Series(label=f"{one.label}: no proof", points=(), style=style))
            rows.append((one.label, f"no proof: {clean(one.refusal)}"))
    steps = [f"{step}" for step, _ in _few(proved[0].points)] if proved else []
    across = Axis(label="steps in the ledger", low=0.0, high=float(proved[0].points[-1][0]) if proved else None)
    figure = svg.lines(
        name="epsilon",
        title="Privacy spent over the steps",
        description=f"ε at δ = {up(facts.delta)}: upper bounds at some steps, straight lines between.",
        series=[one for one in series if one.points][:1] or series[:1],
        x=across,
        y=Axis(label="ε (upper bound)", low=0.0),
    )
    compared = svg.lines(
        name="accountants",
        title="The same by four accountants",
        description="Every line is an upper bound; the lowest makes the claim.",
        series=series,
        x=across,
        y=Axis(label="ε (upper bound)", low=0.0, high=high),
    )
    numbers = table(("accountant, after step", *steps), rows)
    return f"{figure}<details><summary>The numbers, by four accountants</summary>{compared}{numbers}</details>"


def _few(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return about four of the points, the last among them, for a table."""
    return [*points[3:-1:3], points[-1]] if len(points) > 5 else list(points[1:])


def _curve(facts: Findings) -> str:
    upper = [(epsilon, found.upper) for epsilon, found in facts.curve]
    lower = [(epsilon, found.lower) for epsilon, found in facts.curve if found.lower]
    least = max(min((delta for _, delta in upper if delta > 0), default=1e-12), 1e-20)
    series = [Series(label="upper bound, certified at the marks", points=upper, style=0, marks=True)]
    if lower:
        series.append(Series(label="lower bound: no accounting can go below", points=lower, style=1))
    figure = svg.lines(
        name="curve",
        title="The whole guarantee: δ at every ε",
        description="The same run is (ε, δ)-private for every pair on the line; the claim is one of them.",
        series=series,
        x=Axis(label="ε", low=0.0, high=facts.curve[-1][0]),
        y=Axis(label="δ", low=least, high=1.0, log=True),
    )
    rows = [
        (f"{epsilon:.4g}", up(found.upper), f"{found.lower:.3g}" if found.lower else "–")
        for epsilon, found in facts.curve
    ]
    return figure + details(("ε", "δ at most", "δ at least"), rows)


def _attack(facts: Findings) -> str:
    rates = sorted({0.0, *RATES, *(10 ** (-3 + i / 8) for i in range(25)), *(i / 50 for i in range(51))})
    bound = list(zip(rates, facts.attack_power(rates), strict=True))
    return svg.lines(
        name="attack",
        title="The best possible attack",
        description="No membership attack, whatever it knows, has a point above the line. On the diagonal it guesses.",
        series=[
            Series(label="bound on any attack", points=bound, style=0),
            Series(label="guessing", points=((0.0, 0.0), (1.0, 1.0)), style=5),
        ],
        x=Axis(label="false-positive rate: share of the absent it accuses", low=0.0, high=1.0, percent=True),
        y=Axis(label="true-positive rate: share of those present it finds", low=0.0, high=1.0, percent=True),
    )


def _powers(facts: Findings) -> str:
    """Return the same in numbers, with their meaning."""
    powers = zip(RATES, facts.attack_power(RATES), strict=True)
    rows = [(f"{100 * rate:g} %", percent(power), rounded_up(power / rate)) for rate, power in powers]
    words = (
        "An attacker sees everything released and guesses for each record whether it was in the data. Each row gives "
        "the share of absent records that the attacker accuses wrongly, and the largest share of present records that "
        "it can then find."
    )
    head = ("accuses of the absent", "finds at most of those present", "times guessing")
    return f"<h3>The best attack in numbers</h3><p>{words}</p>{table(head, rows)}"


def _metrics(run: Run, history: Sequence[Said], *, accuracy: bool) -> str:
    """Metrics with "accuracy" in their name, or with "loss"; each marked as private or not, by the ledger."""
    released = groups(run)
    by_epoch = all(entry.number("epoch") is not None for entry in history)
    lines: dict[str, list[Point]] = {}
    marks: dict[str, str] = {}
    for entry in history:
        at = entry.number("epoch" if by_epoch else "step")
        for name, metric in entry.object("metrics").values.items():
            value = number(metric.get("value")) if isinstance(metric, dict) else None
            if at is None or value is None or ("accuracy" if accuracy else "loss") not in name:
                continue
            lines.setdefault(name, []).append((at, value))
            if not paid_for(name, metric, released):
                note = metric.get("note")
                marks[name] = f"NOT private ({clean(note) if isinstance(note, str) else 'as run.json has it'})"
    lines = _drawn(lines)
    if not lines:
        return ""
    series = [
        Series(label=f"{clean(name)}: {marks.get(name, 'private, in the ledger')}", points=thin(points), style=style)
        for style, (name, points) in enumerate(itertools.islice(lines.items(), _MOST_LINES))
    ]
    values = [value for one in series for _, value in one.points]
    shares = accuracy and min(values) >= 0 and max(values) <= 1
    return svg.lines(
        name="accuracy" if accuracy else "loss",
        title="Accuracy over the epochs" if accuracy else "Loss over the epochs",
        description="From run.json. Lines marked as not private have no noise, and the guarantee does not cover them.",
        series=series,
        x=Axis(label="epochs" if by_epoch else "steps", low=0.0, high=_end(lines.values())),
        y=Axis(label="accuracy" if accuracy else "loss", high=1.0 if shares else None, percent=shares),
    )


def _settings(run: Run) -> list[str]:
    """Noise multiplier of whole steps and clip norm of each group, as the ledger lists them."""
    noise: dict[str, list[Point]] = {}
    norms: dict[str, list[Point]] = {}
    at = 0
    for step, count in run.ledger.entries:
        here = (float(at + 1), float(at + count))
        multiplier = _multiplier(step)
        if multiplier is not None:
            names = ", ".join(clean(query.group) for query in step.queries)
            _extend(noise, names if len(names) < 40 else f"{names[:39]}…", here, multiplier)
        for query in step.queries:
            if isinstance(query, GaussianSum | LaplaceSum):
                _extend(norms, clean(query.group), here, query.clip_norm)
        at += count
    sums = "Noise on the sum over the most one record adds to it, all queries of a step together (from the ledger)."
    bounds = "The most one record can add to a sum, for each group (from the ledger)."
    return [
        _over_steps("noise", "Noise over the steps", "noise multiplier z of the whole step", sums, noise, at),
        _over_steps("clip", "Clip norm over the steps", "clip norm S", bounds, norms, at),
    ]


def _multiplier(step: Step) -> float | None:
    gaussian = bool(step.queries) and all(isinstance(query, GaussianSum) for query in step.queries)
    return step.noise_multiplier if gaussian else None


def _extend(lines: dict[str, list[Point]], name: str, steps: tuple[float, float], value: float) -> None:
    begin, end = steps
    if not SMALLEST <= value <= LARGEST:
        return
    lines.setdefault(name, []).extend([(begin, value)] if begin == end else [(begin, value), (end, value)])


def _over_steps(name: str, title: str, label: str, description: str, lines: dict[str, list[Point]], steps: int) -> str:
    lines = _drawn(lines)
    if not lines:
        return ""
    if len(lines) > _MOST_LINES:
        description += f" The first {_MOST_LINES} of {len(lines)} are drawn; all are in the table of releases."
    kept = list(lines.items())[:_MOST_LINES]
    series = [
        Series(label=_named(group, points), points=thin(points), style=style)
        for style, (group, points) in enumerate(kept)
    ]
    values = [value for _, points in kept for _, value in points]
    wide = min(values) > 0 and max(values) > 20 * min(values)
    return svg.lines(
        name=name,
        title=title,
        description=description,
        series=series,
        x=Axis(label="steps in the ledger", low=0.0, high=float(steps)),
        y=Axis(label=label, low=None if wide else 0.0, log=wide),
    )


def _drawn(lines: dict[str, list[Point]]) -> dict[str, list[Point]]:
    """Return the lines that have two places or more; a dot says no more than the table of releases."""
    return {name: points for name, points in lines.items() if len({at for at, _ in points}) > 1}


def _named(group: str, points: Sequence[Point]) -> str:
    low, high = f"{min(value for _, value in points):.4g}", f"{max(value for _, value in points):.4g}"
    return f"{group}: {low}" if low == high else f"{group}: {low} to {high}"


def _learning_rate(history: Sequence[Said]) -> str:
    points = [
        (step, rate)
        for step, rate in ((entry.number("step"), entry.number("learning_rate")) for entry in history)
        if step is not None and rate is not None
    ]
    if not _drawn({"rate": points}):
        return ""
    return svg.lines(
        name="rate",
        title="Learning rate over the steps",
        description="From run.json. The learning rate does not change the guarantee.",
        series=[Series(label="learning rate", points=thin(points), style=0)],
        x=Axis(label="steps of training", low=0.0, high=_end([points])),
        y=Axis(label="learning rate", low=0.0),
    )


def _norms(run: Run) -> str:
    """The histogram of gradient norms, only if run.json names the group of the ledger that paid for it."""
    held = run.said.object("gradient_norms")
    edges = [number(value) for value in held.value("edges") or ()] if isinstance(held.value("edges"), list) else []
    counts = [number(value) for value in held.value("counts") or ()] if isinstance(held.value("counts"), list) else []
    paid = held.value("private") is True and held.value("group") in groups(run)
    ends = [edge for edge in edges if edge is not None]
    heights = [max(count, 0.0) for count in counts if count is not None]
    sound = len(ends) == len(edges) == len(counts) + 1 == len(heights) + 1 and ends == sorted(set(ends))
    total = math.fsum(heights) if heights else 0.0
    if not (paid and sound and 1 <= len(heights) <= 1000 and 0 < total < math.inf):
        return ""
    return svg.bars(
        name="norms",
        title="Gradient norms of the records",
        description=f"Released privately, with noise, as group {clean(str(held.value('group')))} of the ledger. Norms "
        "beyond the ends are in the first and last bars.",
        edges=ends,
        heights=[height / total for height in heights],
        x=Axis(label="gradient norm before clipping", low=ends[0], high=ends[-1], log=0 < 20 * ends[0] < ends[-1]),
    )


def _end(lines: Iterable[Sequence[Point]]) -> float | None:
    """Return the last x of any line; None, for the axis to choose, if it is not after the first."""
    last = max(at for points in lines for at, _ in points)
    return last if last > 0 else None


def thin(points: Sequence[Point]) -> list[Point]:
    """Return at most a few hundred of the points, evenly spaced, the last among them."""
    every = math.ceil(len(points) / _MOST_POINTS)
    return [*points[:-1:every], points[-1]] if points else []
