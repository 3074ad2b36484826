"""Paper 1 computed again: its numbers, the experiments on something tiny, and runs that are shared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tacit.data import Images
from tacit.features import Pca
from tacit.ledger import Budget
from tacit.mechanisms import PerLayer
from tacit.models.abadi import centre_crop, cifar_cnn, standardise
from tacit.recipes import Mlp, Recipe, abadi, public, train
from tacit.recipes.pretraining import Learner, pretrain
from tacit.recipes.reproduction import EXPERIMENTS, Result, Setting, cifar, find, headline, mnist, spending, sweeps
from tacit.recipes.reproduction import measure as measuring
from tacit.recipes.reproduction.measure import Runs, private, spent

Make = Callable[..., Recipe]
BUDGET = Budget(epsilon=4.0, delta=1e-5)


def setting(directory: Path, seeds: int = 1, *, quick: bool = True) -> Setting:
    return Setting.make(quick=quick, runs=directory / "runs", seeds=seeds)


def test_the_registry_has_the_papers_figures_and_tables() -> None:
    assert set(EXPERIMENTS) == {
        "headline", "figure2", "figure3", "figure4", "figure5", "figure6", "epochs", "improvements",
        "table4", "figure8", "figure9", "figure10", "figure11", "figure12", "figure13",
    }  # fmt: skip
    assert all(name == experiment.name and experiment.title for name, experiment in EXPERIMENTS.items())
    assert EXPERIMENTS["figure5"].minutes[0] <= 15
    with pytest.raises(ValueError, match="experiment is 'figure1'; choose one of headline, figure2"):
        find("figure1")


def test_the_papers_numbers_are_as_printed() -> None:
    assert spending.PAPER == {
        ("strong", 100): 9.34, ("moments", 100): 1.26, ("strong", 400): 24.22, ("moments", 400): 2.55,
    }  # fmt: skip
    assert mnist.PAPER == {0.5: 90.0, 2.0: 95.0, 8.0: 97.0} and mnist.PAPER_BASELINE == 98.3
    assert cifar.PAPER == {2.0: 67.0, 4.0: 70.0, 8.0: 73.0} and cifar.PAPER_BASELINE == 80.0
    assert cifar.PAPER_SECONDS == (40.0, 180.0) and sweeps.PAPER_RANDOM == 92.5
    assert public.LOTS == {2.0: 2000, 4.0: 4000, 8.0: 4000}
    for sweep in sweeps.SWEEPS:
        assert sweep.reference in sweep.quick and sweep.reference in sweep.full


def test_figure_2_has_the_known_values(tmp_path: Path) -> None:
    result = spending.figure2(setting(tmp_path))
    ours = {c.what: c.ours for c in result.comparisons}
    known = {100: (9.34, 1.2586, 1.0355, 0.9468667), 400: (24.22, 2.5759, 2.2097, 2.033065)}
    for epochs, values in known.items():
        strong, moments, rdp, pld = (ours[f"ε after {epochs} epochs, {name}"] for name in spending.NAMES.values())
        assert strong == pytest.approx(values[0], abs=0.05)
        assert moments == pytest.approx(values[1], abs=2e-4)
        assert rdp == pytest.approx(values[2], abs=2e-4)
        assert values[3] <= pld <= values[3] + 1e-3
    assert all(c.bound for c in result.comparisons)
    assert [row["epoch"] for row in result.rows][-1] == 400


def test_epochs_that_fit_are_the_known_ones(tmp_path: Path) -> None:
    known = [  # rounded to whole epochs, by other software
        (54, 108, 128), (246, 334, 388), (728, 861, 973), (140, 190, 222), (525, 659, 757), (1843, 2178, 2460),
        (69, 94, 110), (261, 328, 377), (920, 1087, 1228),
    ]  # fmt: skip
    rows = spending.epochs(setting(tmp_path)).rows
    for row, values in zip(rows, known, strict=True):
        ours = [row[f"epochs_{name}"] for name in ("moments", "rdp", "pld")]
        assert ours == pytest.approx(values, abs=1)


def test_a_watched_run_costs_the_same_as_a_private_run(images: Images, recipe: Make, tmp_path: Path) -> None:
    small = recipe(clipping=PerLayer(each=1.0), noise=6.0, loss_bound=None)
    outcome = train(small, images, budget=BUDGET, out=tmp_path / "run", seed=1)
    run = private(small, images, budget=BUDGET, seed=1, runs=Runs(tmp_path))
    assert run.last.step == outcome.steps and run.noise_multiplier == outcome.noise_multiplier
    cost = spent(small, outcome.noise_multiplier, records=600, steps=outcome.steps, delta=1e-5)
    assert cost == pytest.approx(outcome.guarantee.epsilon, rel=1e-6)
    assert 0.4 < run.last.test <= 1 and 0.4 < run.last.train <= 1


def test_a_run_is_made_once(images: Images, recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = private(recipe(), images, budget=BUDGET, seed=1, runs=Runs(tmp_path), points=4, also=(5,))
    assert [point.step for point in first.points] == [5, 20, 40, 60, 80]
    assert first.at(39) == first.points[1]
    other = private(recipe(), images, budget=BUDGET, seed=2, runs=Runs(tmp_path), points=4, also=(5,))
    assert other != first

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the run was made again")

    monkeypatch.setattr(measuring, "make_private", never)
    assert private(recipe(), images, budget=BUDGET, seed=1, runs=Runs(tmp_path), points=4, also=(5,)) == first
    with pytest.raises(AssertionError, match="made again"):
        private(recipe(lot_size=50), images, budget=BUDGET, seed=1, runs=Runs(tmp_path), points=4, also=(5,))


def test_features_are_given_only_where_nothing_is_learned(images: Images, recipe: Make, tmp_path: Path) -> None:
    rows = torch.zeros(600, 6), torch.zeros(90, 6)
    with pytest.raises(ValueError, match="it learns from the records"):
        private(recipe(), images, budget=BUDGET, seed=1, runs=Runs(tmp_path), features=lambda: rows)


@pytest.fixture
def tiny(images: Images, recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiments on stripes instead of MNIST, with a recipe that takes a second."""

    def printed(epsilon: float) -> Recipe:
        pca = Pca(dimensions=6, noise_multiplier=60.0)
        model = Mlp(hidden=(12,), activation="relu")
        change = {"front": pca, "model": model, "clipping": PerLayer(each=1.0), "averaging": None, "loss_bound": None}
        return recipe(noise={0.5: 40.0, 2.0: 12.0, 8.0: 6.0}[epsilon], epochs=1.2, **change)

    monkeypatch.setattr(abadi, "printed", printed)
    monkeypatch.setattr(abadi, "tuned", lambda epsilon: recipe(epochs=2, front=printed(epsilon).front))
    monkeypatch.setattr(mnist, "_directions", lambda images, dimensions: torch.eye(64)[:60])
    for module in (mnist, sweeps, headline):
        monkeypatch.setattr(module, "load", lambda name, fetch: images)


def check(result: Result) -> None:
    assert result.rows and result.comparisons and result.notes
    assert all(list(row) == list(result.rows[0]) for row in result.rows)
    json.dumps([dict(row) for row in result.rows], allow_nan=False)
    assert all(len(line.x) == len(line.y) or line.style == "level" for panel in result.panels for line in panel.lines)


@pytest.mark.usefixtures("tiny")
def test_the_mnist_experiments_share_their_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure3 = mnist.figure3(setting(tmp_path, seeds=2))
    check(figure3)
    assert len(figure3.panels) == 4
    assert {row["run"] for row in figure3.rows} == {*mnist.LEVELS.values(), "not private"}
    assert max(float(row["epsilon"]) for row in figure3.rows if row["run"] == "large noise") <= 0.5
    assert [c.paper for c in figure3.comparisons] == [90.0, None, 95.0, None, 97.0, None, 98.3, None]
    assert "without privacy" in figure3.notes[-1] and "seed (1, 2;" in figure3.notes[-1]
    before = set((tmp_path / "runs").iterdir())
    figure4 = mnist.figure4(setting(tmp_path, seeds=2))
    check(figure4)
    assert set((tmp_path / "runs").iterdir()) == before
    assert figure4.comparisons[0].paper == 90.0 and "δ = 1e-02" in figure4.comparisons[0].what
    for delta in mnist.DELTAS:  # more ε never costs accuracy
        found = [row["test_accuracy_percent"] for row in figure4.rows if row["delta"] == delta]
        known = [value for value in found if value is not None]
        assert known == sorted(known) and found[len(found) - len(known) :] == known
    improvements = mnist.improvements(setting(tmp_path, seeds=2))
    check(improvements)
    assert len(improvements.rows) == 12
    assert len(set((tmp_path / "runs").iterdir()) - before) == 6  # the tuned ones alone

    def absent(setting: Setting) -> None:
        raise ValueError("cifar10 is not here.")

    monkeypatch.setattr(cifar, "measured", absent)
    table = headline.headline(setting(tmp_path, seeds=2))
    check(table)
    assert "CIFAR-10 is left out: cifar10 is not here." in table.notes
    assert [c.paper for c in table.comparisons] == [
        *(90.0, 90.0, None, 95.0, 95.0, None, 97.0, 97.0, None), *(98.3, None, 1.3),
    ]  # fmt: skip


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_sweeps_vary_one_parameter(quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "pca_dimensions": (6, 60),
        "hidden_units": (8, 1000),
        "lot_size": (100, 600),
        "learning_rate": (0.05, 0.1),
    }
    values |= {"clip_norm": (1, 4), "noise": (4, 20)}
    changed = [replace(sweep, **{"quick" if quick else "full": values[sweep.name]}) for sweep in sweeps.SWEEPS]
    monkeypatch.setattr(sweeps, "SWEEPS", changed)
    monkeypatch.setattr(sweeps, "_QUICK_EPOCHS", 2)
    result = sweeps.figure5(setting(tmp_path, quick=quick))
    check(result)
    assert any(note.startswith("Quick") for note in result.notes) is quick
    assert len(result.panels) == 6 and len(result.rows) == 13
    reference = {row["test_accuracy_percent"] for row in result.rows if row["value"] == 4 or row["value"] == 1000}
    assert len(reference) == 1  # one run, in every panel
    assert all(float(row["epsilon"]) <= 2 for row in result.rows)
    assert [c.paper for c in result.comparisons[:2]] == [95.0, 92.5]


def colours(count: int, classes: int) -> Images:
    """Pictures of 32×32 in colours, half of them for testing."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(2 * count) % classes
    pixels = torch.randint(0, 256, (2 * count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    parts = {
        "train": pixels[:count],
        "train_labels": labels[:count],
        "test": pixels[count:],
        "test_labels": labels[count:],
    }
    return Images(name="colours", classes=classes, source="made up", fingerprint=f"{count}", **parts)


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_cifar_from_public_convolutions(quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "load", lambda name, fetch: colours(300, 10))
    monkeypatch.setattr(cifar, "public_images", lambda: colours(128, 6))
    monkeypatch.setattr(cifar, "_PUBLIC_EPOCHS", {quick: 1})
    monkeypatch.setattr(cifar, "_EPOCHS", 1)
    monkeypatch.setattr(cifar, "_BASELINE_EPOCHS", {True: 2, quick: 2})
    monkeypatch.setattr(cifar, "cifar", lambda *a, **k: replace(public.cifar(*a, **k), lot_size=100, epochs=1))
    result = cifar.figure6(setting(tmp_path, quick=quick))
    check(result)
    noise = {float(row["noise_multiplier"]) for row in result.rows if row["noise_multiplier"] is not None}
    assert (noise == {6 / math.sqrt(3)}) is not quick  # as printed, or solved for
    assert [c.paper for c in result.comparisons] == [
        67.0, 70.0, 73.0, None, None, None, 80.0, 7.0, None, None, 40.0, 180.0, 4.5,
    ]  # fmt: skip
    assert len(result.panels) == 3
    assert max(float(row["epsilon"]) for row in result.rows if row["run"] == "epsilon 2") <= 2
    weights = next((tmp_path / "runs").glob("public-colours-*.safetensors"))
    recipe = public.cifar(2.0, weights=weights, digest="0" * 64)
    groups = {name: torch.Size([2]) for name in ("0.weight", "0.bias", "2.weight", "4.weight")}
    assert [group.clip_norm for group in recipe.clipping.bind(groups).groups] == [3.0, 3.0, 6.0]


def test_pretrained_layers_are_kept_but_for_the_last(tmp_path: Path) -> None:
    path = tmp_path / "public.safetensors"
    told: list[float] = []
    digest = pretrain(colours(256, 6), path, epochs=1, seed=3, watch=told.append)
    assert told == [0.5, 1.0]
    head = public.Pretrained(weights=str(path), digest=digest, lengths=(2.0, 3.0, 4.0))
    known = load_file(path)
    rows = torch.rand(5, 2304, generator=torch.Generator().manual_seed(1))
    plain = cifar_cnn(classes=10).classifier
    names = {name: known[f"classifier.{name}"] for name in plain.state_dict() if not name.startswith("4.")}
    plain.load_state_dict(names | {"4.weight": torch.zeros(10, 384), "4.bias": torch.zeros(10)})
    built = head.build((2304,), 10)
    scale = 4.0 / known["classifier.4.spread"]
    assert torch.allclose(built[:-1](rows), (plain[:4](rows) - known["classifier.4.centre"]) * scale, atol=1e-4)
    assert not built(rows).any()
    assert pretrain(colours(256, 6), tmp_path / "again", epochs=1, seed=3) == digest
    with pytest.raises(ValueError, match="features have shape"):
        head.build((100,), 10)


def test_folded_weights_compute_the_same_as_the_learned_model(tmp_path: Path) -> None:
    images = colours(64, 6)
    torch.manual_seed(1)
    model = Learner(6)
    for _ in range(3):
        model(standardise(centre_crop(images.train)))  # running statistics of their own
    model.eval()
    plain = cifar_cnn(classes=6)
    last = {f"classifier.4.{name}": value for name, value in model.layers[-1].state_dict().items()}
    plain.load_state_dict(model.folded() | last)
    x = standardise(centre_crop(images.test))
    assert torch.allclose(plain(x), model(x), atol=1e-4)
    assert torch.allclose(plain.convolutions(x), model.inputs(x)[0], atol=1e-4)


def test_without_a_public_set_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Images:
        raise ValueError(f"{name} is not here.")

    monkeypatch.setattr(public, "load", absent)
    with pytest.raises(ValueError, match=r"one of cifar100, tinyimagenet: cifar100 is not here\. tinyimagenet is not"):
        public.public_images()
