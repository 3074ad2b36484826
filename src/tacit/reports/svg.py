"""Charts as inline SVG: lines and bars with axes, a legend and a title that screen readers find. No scripts.

Colours and dashes come from the page's style sheet (classes ``s0`` to ``s5``), so that a chart follows light, dark and
print. Every text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 26, 32, 46
STYLES = 6
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line: its name in the legend, its points in order, and which of the styles it has."""

    label: str
    points: Sequence[tuple[float, float]]
    style: int = 0
    marks: bool = False


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A label and the range shown; without ends the data decide. On a logarithmic axis only positive values show."""

    label: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    percent: bool = False


def lines(*, name: str, title: str, description: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Return a ``<figure>`` with one line for each series; ``name`` is a plain word, unique on the page."""
    across = _scale(x, [point[0] for one in series for point in one.points], _LEFT, WIDTH - _RIGHT)
    up = _scale(y, [point[1] for one in series for point in one.points], HEIGHT - _BOTTOM, _TOP)
    parts = [*_frame(across, up), f'<g clip-path="url(#{name}-clip)">']
    for one in series:
        places = [(across.place(px), up.place(py)) for px, py in one.points if across.shows(px) and up.shows(py)]
        style = f"s{one.style % STYLES}"
        if len(places) > 1:
            parts.append(f'<polyline class="line {style}" points="{_path(places)}"/>')
        if one.marks or len(places) == 1:
            parts += [f'<circle class="mark {style}" cx="{px:.1f}" cy="{py:.1f}" r="3"/>' for px, py in places]
    parts.append("</g>")
    legend = [one for one in series if one.label]
    return _figure(name, title, description, parts, legend)


def bars(*, name: str, title: str, description: str, edges: Sequence[float], heights: Sequence[float], x: Axis) -> str:
    """A ``<figure>`` with a histogram: one bar between each two edges."""
    across = _scale(x, edges, _LEFT, WIDTH - _RIGHT)
    up = _scale(Axis(label="share of the records", low=0.0), [*heights, 0.0], HEIGHT - _BOTTOM, _TOP)
    parts = _frame(across, up)
    for left, right, height in zip(edges, edges[1:], heights, strict=False):
        start, end, top = across.place(left), across.place(right), up.place(max(height, 0.0))
        parts.append(
            f'<rect class="bar" x="{start:.1f}" y="{top:.1f}" width="{max(end - start - 1, 0.5):.1f}" '
            f'height="{HEIGHT - _BOTTOM - top:.1f}"/>'
        )
    return _figure(name, title, description, parts, [])


def signed_bars(
    *, name: str, title: str, description: str, labels: Sequence[str], values: Sequence[float], unit: str
) -> str:
    """A ``<figure>`` with a horizontal bar a label, to the left for negative values."""
    ends = [*values, 0.0]
    across = _scale(Axis(label=unit), ends, WIDTH * 0.42, WIDTH - _RIGHT)
    step = (HEIGHT - _TOP - _BOTTOM) / max(len(values), 1)
    zero, floor = across.place(0.0), HEIGHT - _BOTTOM
    parts = [f'<line class="axis" x1="{zero:.1f}" y1="{_TOP}" x2="{zero:.1f}" y2="{floor}"/>']
    for tick in across.ticks:
        x = across.place(tick)
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{escape(across.text(tick))}</text>')
    for place, (label, value) in enumerate(zip(labels, values, strict=True)):
        end, top = across.place(value), _TOP + place * step
        parts.append(
            f'<rect class="bar" x="{min(zero, end):.1f}" y="{top + 0.15 * step:.1f}" '
            f'width="{max(abs(end - zero), 0.5):.1f}" height="{0.7 * step:.1f}"/>'
        )
        shown = label if len(label) <= 28 else label[:27] + "…"
        size = f' style="font-size:{max(step * 0.85, 6):.1f}px"' if step < 12 else ""
        parts.append(
            f'<text x="{WIDTH * 0.42 - 6:.1f}" y="{top + step / 2 + 3.5:.1f}" text-anchor="end"{size}>'
            f"{escape(shown)}</text>"
        )
    parts.append(
        f'<text class="label" x="{WIDTH * 0.7:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(unit)}</text>'
    )
    return _figure(name, title, description, parts, [])


@dataclass(frozen=True)
class _Scale:
    axis: Axis
    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def shows(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.axis.log)

    def place(self, value: float) -> float:
        """Return the place of a value in pixels; never so far off that a browser would choke on it."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.axis.log else (self.low, self.high)
        value = math.log10(value) if self.axis.log else value
        share = min(max((value - low) / (high - low), -3.0), 4.0)
        return self.start + share * (self.end - self.start)

    def text(self, tick: float) -> str:
        if self.axis.percent:
            return f"{100 * tick:.6g} %"
        if self.axis.log and (tick < 1e-3 or tick >= 1e4):
            power = math.floor(math.log10(tick) + 0.5)
            digit = tick / 10.0**power
            return ("" if abs(digit - 1) < 0.01 else f"{digit:.1g}·") + "10" + str(power).translate(_SUPERSCRIPTS)
        if not self.axis.log and self.high >= 1e5 and tick:
            return f"{tick / 1e6:g} M" if self.high >= 1e6 else f"{tick / 1e3:g} k"
        return f"{tick:.6g}"


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> _Scale:
    shown = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)] or [1.0]
    low = min(shown) if axis.low is None else axis.low
    high = max(shown) if axis.high is None else axis.high
    if axis.log:
        low, high = low / (1 if axis.low else 1.3), high * (1 if axis.high else 1.3)
        if high <= low * 1.0001:
            low, high = low / 2, high * 2
        return _Scale(axis, low, high, start, end, tuple(_log_ticks(low, high)))
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        spread = abs(high) or 1.0
        low, high = (low - spread / 2 if axis.low is None else low), low + spread
    step = _nice((high - low) / 5)
    if axis.low is None:
        low = math.floor(low / step + 1e-9) * step
    if axis.high is None:
        high = math.ceil(high / step + 0.05) * step  # a line does not run along the edge
    first = math.ceil(low / step - 1e-9)
    ticks = tuple((first + i) * step for i in range(12) if (first + i) * step <= high * (1 + 1e-9) + 1e-300)
    return _Scale(axis, low, high, start, end, ticks)


def _nice(step: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next((digit * power for digit in (1, 2, 5) if step <= digit * power * 1.0001), 10 * power)


def _log_ticks(low: float, high: float) -> Iterator[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(math.ceil((last - first) / 6), 1)
    digits = (1, 2, 5) if last - first <= 2 else (1,)
    for power in range(first, last + 1):
        for digit in digits:
            tick = digit * 10.0**power
            if power % every == 0 and low * 0.999 <= tick <= high * 1.001:
                yield tick


def _frame(across: _Scale, up: _Scale) -> list[str]:
    """Grid, tick labels and the names of the axes; the y axis is named on top, where it can be read."""
    parts, floor = [], HEIGHT - _BOTTOM
    for tick in up.ticks:
        y = up.place(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(up.text(tick))}</text>')
    for tick in across.ticks:
        x = across.place(tick)
        parts.append(f'<line class="tick" x1="{x:.1f}" y1="{floor}" x2="{x:.1f}" y2="{floor + 5}"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{escape(across.text(tick))}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<line class="axis" x1="{_LEFT}" y1="{floor}" x2="{WIDTH - _RIGHT}" y2="{floor}"/>')
    parts.append(
        f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across.axis.label)}</text>'
    )
    parts.append(f'<text class="label" x="4" y="15">{escape(up.axis.label)}</text>')
    return parts


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _key(series: Series) -> str:
    style = f"s{series.style % STYLES}"
    if len(series.points) == 1:
        return f'<circle class="mark {style}" cx="14" cy="5" r="3.5"/>'
    return f'<line class="line {style}" x1="1" y1="5" x2="27" y2="5"/>'


def _figure(name: str, title: str, description: str, parts: Sequence[str], legend: Sequence[Series]) -> str:
    # A little larger than the axes, for marks that lie on them.
    box = f'x="{_LEFT - 4}" y="{_TOP - 4}" width="{WIDTH - _LEFT - _RIGHT + 8}" height="{HEIGHT - _TOP - _BOTTOM + 8}"'
    keys = "".join(
        f'<li><svg class="key" viewBox="0 0 28 10" aria-hidden="true">{_key(one)}</svg>{escape(one.label)}</li>'
        for one in legend
    )
    return (
        f'<figure id="{name}"><h3>{escape(title)}</h3>'
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="{name}-title {name}-text"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-text">{escape(description)}</desc>'
        f'<clipPath id="{name}-clip"><rect {box}/></clipPath>{"".join(parts)}</svg>'
        + (f'<ul class="legend">{keys}</ul>' if keys else "")
        + f"<figcaption>{escape(description)}</figcaption></figure>"
    )
