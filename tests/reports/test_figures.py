"""Figures for the reproduction: files with the paper's numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tacit.reports import figures
from tacit.reports.figures import Curve, Panel, lines, panels

pyplot = pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib (the plot extra)")


def panel(title: str = "", **changes: Any) -> Panel:
    curve = Curve(label="ours", x=[1, 2, 3], y=[0.8, 0.9, 0.95], paper=[(3, 0.95), (2, 0.92)])
    return Panel(**{"curves": [curve], "x_label": "epochs", "y_label": "accuracy", "title": title, **changes})


def test_draws_our_line_and_the_papers_crosses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    lines(tmp_path / "a.png", panel(log_x=True, y_range=(0.5, 1.0)))
    (axes,) = kept[0].axes
    ours, paper = axes.lines
    assert (list(ours.get_xdata()), list(ours.get_ydata())) == ([1, 2, 3], [0.8, 0.9, 0.95])
    assert (list(paper.get_xdata()), list(paper.get_ydata())) == ([3, 2], [0.95, 0.92])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ours", "the paper"]
    assert (axes.get_xscale(), axes.get_ylim()) == ("log", (0.5, 1.0))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_six_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    panels(tmp_path / "six.png", [panel(f"sweep {i}") for i in range(5)])
    assert [axes.get_title() for axes in kept[0].axes if axes.get_visible()] == [f"sweep {i}" for i in range(5)]


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda folder: lines(folder / "a.txt", panel()), "must end in .png"),
        (lambda folder: panels(folder / "a.png", []), "0 panels"),
        (
            lambda folder: lines(folder / "a.png", panel(curves=[Curve(label="odd", x=[1], y=[1, 2])])),
            "'odd' has 1 x and 2 y",
        ),
    ],
)
def test_mistakes(tmp_path: Path, draw: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw(tmp_path)
    assert not list(tmp_path.iterdir())
    figures._pyplot().close("all")
