"""The files of a reproduced figure: a table that can be read, rows that can be parsed, a picture."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.recipes.reproduction import Comparison, Experiment, Line, Panel, Result, Setting
from tacit.reports.reproduction import draw, markdown, number, table, write

pyplot = pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib (the plot extra)")

RESULT = Result(
    comparisons=[
        Comparison(what="accuracy", paper=95.0, ours=94.871, unit="%"),
        Comparison(what="ε", paper=2.55, ours=2.0331, bound=True),
        Comparison(what="not printed", paper=None, ours=0.05),
    ],
    rows=[{"epoch": 1, "accuracy": 0.123456789, "kind": "a, b"}, {"epoch": 2, "accuracy": None, "kind": "c"}],
    panels=[
        Panel(
            title="one",
            x="epoch",
            y="accuracy",
            log_x=True,
            lines=[
                Line(label="ours", x=[1, 2], y=[3, 4]),
                Line(label="paper", x=[1], y=[3], style="points"),
                Line(label="level", x=[1], y=[3.5], style="level"),
            ],
        )
    ],
    notes=["A note."],
)


def experiment(result: Result) -> Experiment:
    return Experiment(name="figure9", title="a title", paper="A paper", minutes=(1, 2), run=lambda setting: result)


def test_all_files_are_written(tmp_path: Path) -> None:
    setting = Setting.make(quick=True, runs=tmp_path / "runs", seeds=3)
    files = write(experiment(RESULT), RESULT, setting, tmp_path / "out", seconds=12.3)
    assert [path.name for path in files] == ["figure9.md", "figure9.csv", "figure9.png"]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    text = files[0].read_text()
    assert text.startswith("# A paper: a title\n\n![a title](figure9.png)\n\n| | paper | ours | difference |\n")
    assert "| accuracy | 95.00 % | 94.87 % | -0.13 |" in text
    assert "| ε | 2.55 | 2.04 | -0.52 |" in text  # an upper bound is never rounded down
    assert "| not printed | – | 0.05 | – |" in text
    assert "- A note.\n" in text and "`tacit reproduce figure9 --quick --seeds 3`" in text
    assert "torch" in text and "cores" in text and " 20" in text


def test_curves_marks_and_levels_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    draw([*RESULT.panels, RESULT.panels[0]], tmp_path / "a.png", title="both")
    axes, other = (axes for axes in kept[0].axes if axes.get_visible())
    ours, paper, level = axes.lines
    assert (list(ours.get_xdata()), list(ours.get_ydata())) == ([1, 2], [3, 4])
    assert (list(paper.get_xdata()), list(paper.get_ydata())) == ([1], [3])
    assert list(level.get_ydata()) == [3.5, 3.5]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ours", "paper", "level: 3.5"]
    assert axes.get_xscale() == "log" and axes.get_title() == "one"
    assert other.lines[0].get_color() == ours.get_color() != level.get_color()


def test_epochs_are_marked_by_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    curves = [Line(label="a", x=[1, 2, 3], y=[0, 1, 2]), Line(label="b", x=[0.5, 1.0, 3.0], y=[0, 1, 2])]
    draw([Panel(title="", x="epoch", y="", lines=[curve]) for curve in curves], tmp_path / "a.png", title="two")
    whole, any_number = (axes.get_xticks().tolist() for axes in kept[0].axes)
    assert all(tick == round(tick) for tick in whole)
    assert any(tick != round(tick) for tick in any_number)


def test_the_page_names_seeds_that_are_not_the_usual_ones(tmp_path: Path) -> None:
    single = replace(experiment(RESULT), seeds=(1, 1))
    for count, words in ((1, "figure9` on"), (2, "figure9 --seeds 2` on")):
        setting = Setting.make(quick=False, runs=tmp_path / "runs", seeds=count)
        assert words in markdown(single, RESULT, setting, seconds=1)


def test_five_panels_leave_no_empty_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    draw([RESULT.panels[0]] * 5, tmp_path / "a.png", title="five")
    assert sum(axes.get_visible() for axes in kept[0].axes) == 5


def test_a_table_without_curves_has_no_picture(tmp_path: Path) -> None:
    plain = Result(comparisons=RESULT.comparisons, rows=RESULT.rows)
    setting = Setting.make(quick=False, runs=tmp_path / "runs", seeds=3)
    files = write(experiment(plain), plain, setting, tmp_path, seconds=1)
    assert [path.name for path in files] == ["figure9.md", "figure9.csv"]
    assert "`tacit reproduce figure9` on" in files[0].read_text() and "png" not in files[0].read_text()


def test_rows_can_be_parsed() -> None:
    rows = list(csv.DictReader(io.StringIO(table(RESULT))))
    assert rows == [
        {"epoch": "1", "accuracy": "0.123457", "kind": "a, b"},
        {"epoch": "2", "accuracy": "", "kind": "c"},
    ]


def test_numbers_in_the_table() -> None:
    def shown(value: float | None, unit: str = "") -> str:
        return number(value, Comparison(what="", paper=value, ours=None, unit=unit))

    assert [shown(972.0, "epochs"), shown(0.0), shown(0.052), shown(None)] == ["972 epochs", "0.00", "0.052", "–"]


def test_no_seed_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seeds is 0; at least one run is needed"):
        Setting.make(quick=True, runs=tmp_path, seeds=0)
