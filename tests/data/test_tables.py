"""Tables: Adult's quirks, and the real files where this machine has them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tacit.data import load_table, locate
from tacit.data.entries import File, Layout
from tacit.data.formats import digest

ROWS = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Sales, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K",
    "50, ?, 83311, Bachelors, 13, Divorced, ?, Husband, White, Male, 0, 0, 13, ?, >50K",
)


@pytest.fixture
def place(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mine"
    (path / "adult").mkdir(parents=True)
    monkeypatch.setenv("TACIT_DATA", str(path))
    return path


def _expect(known: Callable[..., None], place: Path, *, train: int, test: int) -> None:
    paths = ("adult/adult.data", "adult/adult.test")
    files = tuple(File(path=path, sha256=digest((place / path).read_bytes())) for path in paths)
    known("adult", Layout(format="csv", files=files, train=1, records=(train, test)))


def test_adult_is_cleaned(place: Path, known: Callable[..., None]) -> None:
    (place / "adult" / "adult.data").write_text("\n".join(ROWS) + "\n\n")
    (place / "adult" / "adult.test").write_text("|1x3 Cross validator\n" + "".join(f"{row}.\n" for row in ROWS) + "\n")
    _expect(known, place, train=2, test=2)
    found = load_table("adult")
    assert found.test is not None and found.target == "income"
    for part in (found.train, found.test):
        assert len(part) == 15
        assert part["age"].tolist() == [39.0, 50.0] and part["age"].dtype == np.float64
        assert part["workclass"].tolist() == ["State-gov", "?"] and part["workclass"].dtype.kind == "U"
        assert part["income"].tolist() == ["<=50K", ">50K"]


def test_missing_rows_are_noticed(place: Path, known: Callable[..., None]) -> None:
    (place / "adult" / "adult.data").write_text(ROWS[0] + "\n")
    (place / "adult" / "adult.test").write_text(ROWS[0] + ".\n")
    _expect(known, place, train=2, test=1)
    with pytest.raises(ValueError, match=r"adult\.data does not have 2 rows"):
        load_table("adult")


def test_the_real_adult() -> None:
    if locate("adult") is None:
        pytest.skip("adult is not on this machine")
    found = load_table("adult")
    assert {len(column) for column in found.train.values()} == {32561}
    # UCI's documentation: 24.08 % of the training records earn more than 50K; the test set has 16,281 records.
    assert (found.train["income"] == ">50K").sum() == 7841
    if found.test is not None:
        assert {len(column) for column in found.test.values()} == {16281}
        assert set(found.test["income"]) == {"<=50K", ">50K"}


def test_the_real_pums() -> None:
    if locate("pums") is None:
        pytest.skip("pums is not on this machine")
    found = load_table("pums")
    assert found.test is None and found.target == "employed"
    assert len(found.train) == 18
    assert {(len(column), column.dtype.name) for column in found.train.values()} == {(25766, "float64")}
    place = locate("pums")
    assert place is not None
    other = np.genfromtxt(place / "pums" / "FultonPUMS5full.csv", delimiter=",", skip_header=1)
    np.testing.assert_array_equal(np.column_stack(list(found.train.values())), other)
    assert list(found.train)[:6] == ["state", "puma", "sex", "age", "educ", "income"]


def test_images_are_not_a_table() -> None:
    with pytest.raises(ValueError, match=r"mnist is a set of images.*load\('mnist'\)"):
        load_table("mnist")


def test_a_missing_table_is_one_sentence(bare: Path) -> None:
    with pytest.raises(ValueError, match=r"pums is not here \(tried .*FultonPUMS5full\.csv in pums/"):
        load_table("pums")


def test_import_needs_no_torch() -> None:
    code = "import sys, tacit.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
