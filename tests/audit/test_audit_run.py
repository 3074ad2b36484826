"""`tacit audit RUN`: a finished run is attacked, the result is in its report, and what cannot be attacked is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit.recipes.attack
from recipes.conftest import made_up, recipe  # noqa: F401
from tables.conftest import SCHEMA, people, write_csv
from tacit.audit import setting_of
from tacit.cli import main
from tacit.data import Images
from tacit.features import Pixels
from tacit.ledger import Budget, Everyone, GaussianSum, Ledger, Poisson, Shuffled, Step
from tacit.mechanisms import Flat
from tacit.recipes import Linear, Recipe, Sgd, train
from tacit.recipes.outcome import described
from tacit.recipes.trained import recipe_of


def tacit_command(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return int(stop.value.code or 0)


@pytest.fixture
def stripes(tmp_path: Path, recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    torch.set_num_threads(1)
    images = made_up(200)
    small = recipe(model=Linear(), lot_size=40, epochs=8)
    train(small, images, budget=Budget(epsilon=2.0, delta=1e-5), out=tmp_path / "run", seed=1)
    monkeypatch.setattr(tacit.recipes.attack, "load", lambda name: images)
    return tmp_path / "run"


def test_a_run_on_images_is_attacked_and_reported(stripes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("audit", stripes, "--canaries", "200", "--shadows", "4", "--seed", "5", "--by", "N. N.", "--json")
    assert tacit_command(*words) == 0
    facts = json.loads(capsys.readouterr().out)
    names = [each["attack"] for each in facts["audits"]]
    assert names == ["one run, gradient canaries", "LiRA, online", "LiRA, offline"]
    assert [rate["false_positive_rate"] for rate in facts["audits"][1]["rates"]] == [0.001, 0.01]
    kept = json.loads((stripes / "run.json").read_text())["audit"]
    assert kept["by"] == "N. N." and kept["when"].startswith("20") and kept["attacks"] == facts["audits"]
    assert not kept["violated"] and kept["epsilon_lower"] < 2
    assert tacit_command("report", stripes) == 0
    page = (stripes / "report.html").read_text()
    assert "What attackers found" in page and "N. N." in page and "at FPR 0.1%" in page
    assert "counted on the records without noise" in page
    twin = json.loads((stripes / "privacy.json").read_text())
    assert [row["attack"] for row in twin["attacks"]] == [each["attack"] for each in facts["audits"]]
    assert "N. N." in twin["attacks_by"]


def test_members_of_a_run_that_memorises_are_found(tmp_path: Path, recipe: Callable[..., Recipe]) -> None:  # noqa: F811
    """Labels drawn at random can only be remembered, and at a huge ε they are."""
    torch.set_num_threads(1)
    images = made_up(200)
    random = torch.Generator().manual_seed(1)
    changed = {
        "train_labels": torch.randint(0, 3, (200,), generator=random),
        "test": (255 * torch.rand(200, 1, 8, 8, generator=random)).to(torch.uint8),
        "test_labels": torch.randint(0, 3, (200,), generator=random),
        "train": (255 * torch.rand(200, 1, 8, 8, generator=random)).to(torch.uint8),
    }
    images = Images(**(vars(images) | changed))
    fast = Sgd(learning_rate=4.0, momentum=0.9)
    loud = recipe(front=Pixels(), model=Linear(), lot_size=100, epochs=20, clipping=Flat(1.0), optimizer=fast)
    train(loud, images, budget=Budget(epsilon=300.0, delta=1e-5), out=tmp_path / "run", seed=1)
    online, _ = tacit.recipes.attack.attack_images(tmp_path / "run", shadows=4, seed=2, images=images)
    assert online.area > 0.7
    other = Images(**(vars(images) | {"fingerprint": "1" * 64}))
    with pytest.raises(ValueError, match="not those"):
        tacit.recipes.attack.attack_images(tmp_path / "run", shadows=4, seed=2, images=other)


def test_a_run_on_a_table_needs_the_names_of_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    table, other = write_csv(Path("people.csv"), people(800)), write_csv(Path("other.csv"), people(400, seed=9))
    Path("people.schema.json").write_text(json.dumps(SCHEMA))
    assert tacit_command("train", table, "--test", other, "--epsilon", "4", "--out", "run", "--model", "linear") == 0
    capsys.readouterr()
    assert tacit_command("audit", "run", "--attack", "members") == 2
    assert "give --members and --others" in capsys.readouterr().err
    both = ("--members", table, "--others", other)
    assert tacit_command("audit", "run", "--attack", "members", "--shadows", "4", *both, "--seed", "1") == 0
    out = capsys.readouterr().out
    assert "LiRA, online: 4 shadow models, 800 members, 400 others" in out
    found = json.loads(Path("run/run.json").read_text())["audit"]
    assert found["epsilon_lower"] is None and len(found["attacks"]) == 2


def test_runs_that_cannot_be_audited_are_refused(stripes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit_command("audit", stripes, "--steps", "3") == 2
    assert "--steps is 3; the settings are those of" in capsys.readouterr().err
    assert tacit_command("audit", stripes, "--attack", "inputs") == 2
    assert "choose canaries, members or all" in capsys.readouterr().err
    assert tacit_command("audit", stripes / "nowhere") == 2
    assert "no run.json" in capsys.readouterr().err
    assert tacit_command("audit", "--by", "me") == 2
    assert "give its directory" in capsys.readouterr().err
    facts = json.loads((stripes / "run.json").read_text())
    (stripes / "run.json").write_text(json.dumps(facts | {"finished": False}))
    assert tacit_command("audit", stripes) == 2
    assert "not finished" in capsys.readouterr().err


def test_without_the_images_the_canaries_stand_alone(
    stripes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> Images:
        raise ValueError(f"no data set is called {name!r}.")

    monkeypatch.setattr(tacit.recipes.attack, "load", missing)
    assert tacit_command("audit", stripes, "--canaries", "100", "--seed", "5") == 0
    assert "membership was not attacked: no data set is called 'stripes'." in capsys.readouterr().out
    assert len(json.loads((stripes / "run.json").read_text())["audit"]["attacks"]) == 1
    assert tacit_command("audit", stripes, "--attack", "members") == 2


def test_settings_are_those_of_the_ledgers_training() -> None:
    book = Ledger()
    book.record(Step(Everyone(), (GaussianSum(group="statistics/mean", clip_norm=1.0, noise_std=9.0),)))
    groups = (
        GaussianSum(group="gradients/a", clip_norm=1.0, noise_std=3.0),
        GaussianSum(group="gradients/b", clip_norm=2.0, noise_std=6.0),
        GaussianSum(group="metrics/loss", clip_norm=1.0, noise_std=50.0),
    )
    for _ in range(5):
        book.record(Step(Poisson(rate=0.1, records=1000), groups))
    found = setting_of(book, canaries=200, delta=1e-6)
    assert (found.records, found.lot_size, found.steps, found.delta) == (200, 20, 5, 1e-6)
    assert found.noise_multiplier == pytest.approx(3 / np.sqrt(2))


def test_ledgers_without_such_training_are_refused() -> None:
    with pytest.raises(ValueError, match="no Gaussian sums of gradients"):
        setting_of(Ledger(), canaries=20, delta=1e-5)
    book = Ledger()
    lot = Shuffled(lots=4, epoch=0, records=40)
    book.record(Step(lot, (GaussianSum(group="gradients", clip_norm=1.0, noise_std=1.0),)))
    with pytest.raises(ValueError, match="drawn by Shuffled"):
        setting_of(book, canaries=20, delta=1e-5)


def test_a_recipe_is_read_back_as_it_was_written(recipe: Callable[..., Recipe]) -> None:  # noqa: F811
    written = recipe()
    assert recipe_of(described(written)) == written
    with pytest.raises(ValueError, match="no recipe of images"):
        recipe_of(described(Linear()))
