"""Charts: well-formed whatever the numbers, and every point where it belongs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.reports.svg import HEIGHT, WIDTH, Axis, Series, bars, lines

numbers = st.floats(-1e100, 1e100).map(lambda value: value if abs(value) >= 1e-100 else 0.0)
Points = list[tuple[float, float]]
points = st.lists(st.tuples(numbers, numbers), max_size=6)


def parse(figure: str) -> ET.Element:
    return ET.fromstring(figure)


@settings(max_examples=150)
@given(st.lists(points, max_size=3), st.booleans(), st.booleans(), st.sampled_from([None, 0.0]))
def test_any_numbers_give_a_chart(data: list[Points], x_log: bool, y_log: bool, low: float | None) -> None:
    series = [Series(label="<&>", points=one, style=i, marks=True) for i, one in enumerate(data)]
    x = Axis(label="x", low=None if x_log else low, log=x_log)
    figure = lines(name="a", title="<b>", description="'\"", series=series, x=x, y=Axis(label="y", log=y_log))
    root = parse(figure)
    assert "nan" not in figure and "inf" not in figure
    for tick in root.iter("text"):
        assert -40 <= float(tick.attrib["x"]) <= WIDTH + 20
        assert 0 <= float(tick.attrib["y"]) <= HEIGHT


def test_points_lie_where_the_axes_say() -> None:
    figure = lines(
        name="a",
        title="t",
        description="d",
        series=[Series(label="one", points=[(0.0, 1e-4), (10.0, 1.0)])],
        x=Axis(label="x", low=0.0, high=10.0),
        y=Axis(label="y", low=1e-4, high=1.0, log=True),
    )
    root = parse(figure)
    drawn = next(root.iter("polyline")).attrib["points"]
    left, right = ([float(value) for value in pair.split(",")] for pair in drawn.split(" "))
    axis = next(line for line in root.iter("line") if line.attrib["class"] == "axis").attrib
    assert left == [float(axis["x1"]), float(axis["y1"])]
    assert right[0] == float(axis["x2"])
    assert right[1] < 40
    ticks = {tick.text: float(tick.attrib["y"]) for tick in root.iter("text")}
    assert ticks["1"] - 4 == right[1]
    assert abs((ticks["0.01"] - ticks["1"]) - (ticks["10⁻⁴"] - ticks["0.01"])) < 0.2


def test_ticks_are_round_and_labels_are_escaped() -> None:
    figure = lines(
        name="a",
        title="<x>",
        description="d",
        series=[Series(label="a<b", points=[(0.0, 0.13), (1e6, 0.87)])],
        x=Axis(label="steps", low=0.0),
        y=Axis(label="accuracy", percent=True),
    )
    assert "<x>" not in figure and "a&lt;b" in figure
    assert {"0 %", "20 %", "40 %", "60 %", "80 %"} <= set(re.findall(r">([^<]* %)<", figure))
    assert ">0.2 M<" in figure and ">1 M<" in figure


def test_bars_fill_their_share() -> None:
    figure = bars(
        name="a", title="t", description="d", edges=[0.0, 1.0, 3.0], heights=[0.25, 0.5], x=Axis(label="norm")
    )
    first, second = [bar.attrib for bar in parse(figure).iter("rect") if bar.attrib.get("class") == "bar"]
    assert abs(float(second["height"]) - 2 * float(first["height"])) < 0.2
    assert abs(float(second["width"]) + 1 - 2 * (float(first["width"]) + 1)) < 0.2
