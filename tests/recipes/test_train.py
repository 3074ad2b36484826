"""The runner: what it writes, what it charges, and what it refuses before it writes anything."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tacit.accounting import Filter, account
from tacit.data import Images
from tacit.features import GaussianKernel, Grouped, Patches, Pca, Pixels, Scattering, Statistics, Whitened
from tacit.gradients.precision import MARGIN
from tacit.ledger import Budget, BudgetExceeded, GaussianSum, Ledger
from tacit.mechanisms import PerLayer
from tacit.recipes import Linear, Moment, Recipe, Trained, train
from tacit.reports import report
from tacit.tuning import NormHistogram

Make = Callable[..., Recipe]
BUDGET = Budget(epsilon=3.0, delta=1e-5)


def test_a_run_leaves_a_model_its_ledger_and_its_story(images: Images, recipe: Make, tmp_path: Path) -> None:
    seen: list[Moment] = []
    outcome = train(recipe(), images, budget=BUDGET, out=tmp_path / "run", progress=seen.append)
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {"ledger.jsonl", "model.json", "model.safetensors", "run.json"}
    facts = json.loads((tmp_path / "run/run.json").read_text())
    assert facts["finished"] is True
    assert facts["result"] == outcome.result()
    assert facts["dataset"] == {
        "name": "stripes",
        "records": 600,
        "test_records": 90,
        "classes": 3,
        "fingerprint": "0" * 64,
        "source": "made up",
    }
    assert (facts["budget"], facts["seed"]) == ({"epsilon": 3.0, "delta": 1e-5}, None)
    assert set(facts["versions"]) == {"tacit", "torch", "python", "numpy"}
    assert facts["recipe"]["name"] == "small"
    assert outcome.test_accuracy > 0.8
    assert outcome.steps == 80
    history = facts["history"]
    assert history[-1]["step"] == 80 and history[-1]["epoch"] == pytest.approx(8.0)
    spent = [point["epsilon"] for point in history]
    assert spent == sorted(spent) and spent[-1] == pytest.approx(outcome.guarantee.epsilon)
    assert all(point["metrics"]["loss"]["private"] is True for point in history)
    shown = history[-1]["metrics"]["test_accuracy"]
    assert (shown["value"], shown["private"]) == (outcome.test_accuracy, False) and "public" in shown["note"]
    assert [moment.stage for moment in seen[:2]] == ["front end", "features"]
    assert (seen[-1].step, seen[-1].steps) == (80, 80)


def test_everything_learned_is_in_the_ledger_and_within_the_budget(
    images: Images, recipe: Make, tmp_path: Path
) -> None:
    outcome = train(recipe(), images, budget=BUDGET, out=tmp_path)
    ledger = Ledger.load(tmp_path / "ledger.jsonl")
    (front, once), (step, count) = ledger.entries
    assert (front, once) == (recipe().front.charges(600)[0], 1)
    assert count == 80
    assert {query.group for query in step.queries} == {"gradients", "metrics/loss"}
    assert step.noise_multiplier == pytest.approx(outcome.noise_multiplier)
    epsilon = account(ledger, delta=1e-5).epsilon
    assert 2.99 < epsilon <= 3.0  # the noise was solved for all of it
    assert epsilon == outcome.guarantee.epsilon
    assert account(ledger, delta=1e-5).epsilon > account_without_front(ledger)


def account_without_front(ledger: Ledger) -> float:
    from tacit.accounting import guarantee

    return guarantee(ledger.entries[1:], ledger.header, delta=1e-5).epsilon


def test_the_saved_model_is_the_one_that_was_measured(images: Images, recipe: Make, tmp_path: Path) -> None:
    outcome = train(recipe(), images, budget=BUDGET, out=tmp_path)
    tensors, plan = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "model.json").read_text())
    assert plan["front"]["kind"] == "Pca" and plan["model"] == {"kind": "Mlp", "hidden": [16], "activation": "tanh"}
    assert (plan["image_shape"], plan["feature_shape"], plan["classes"]) == ([1, 8, 8], [6], 3)
    trained = Trained.load(tmp_path)
    right = (trained.scores(images.test).argmax(1) == images.test_labels).float().mean()
    assert right.item() == pytest.approx(outcome.test_accuracy, abs=0.02)  # features were kept in half precision
    weights = torch.cat([value.flatten() for value in outcome.model.state_dict().values()])
    assert torch.equal(torch.cat([tensors[f"model.{name}"].flatten() for name in outcome.model.state_dict()]), weights)


def test_a_model_that_is_not_whole_is_refused(images: Images, recipe: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.json is missing"):
        Trained.load(tmp_path)
    train(recipe(epochs=1), images, budget=BUDGET, out=tmp_path / "run")
    file = tmp_path / "run/model.json"
    facts = json.loads(file.read_text())
    for change, message in (
        ({"model": {"kind": "Oracle"}}, "the model needs a Oracle; this version of tacit knows Pixels, "),
        ({"classes": 4}, "do not fit together"),
        ({"format": 9}, "is not a run of format 1"),
    ):
        file.write_text(json.dumps(facts | change))
        with pytest.raises(ValueError, match=message):
            Trained.load(tmp_path / "run")
    file.write_text(json.dumps(facts))
    (tmp_path / "run/model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged or missing"):
        Trained.load(tmp_path / "run")


def test_printed_noise_is_a_query_of_two_groups_and_runs_to_the_end_of_the_budget(
    images: Images, recipe: Make, tmp_path: Path
) -> None:
    chosen = recipe(noise=2.0, clipping=PerLayer(each=4.0), epochs=500, loss_bound=None)
    outcome = train(chosen, images, budget=BUDGET, out=tmp_path)
    ledger = Ledger.load(tmp_path / "ledger.jsonl")
    step, count = ledger.entries[1]
    found = [(query.clip_norm, query.noise_std) for query in step.queries if isinstance(query, GaussianSum)]
    assert np.allclose(found, [(4.0 * (1 + MARGIN), 8.0 * (1 + MARGIN))] * 2)
    assert outcome.noise_multiplier == pytest.approx(2.0 / math.sqrt(2))
    assert account(ledger, delta=1e-5).epsilon <= 3.0
    with pytest.raises(BudgetExceeded):
        Filter(BUDGET)(ledger, step)
    assert count == outcome.steps < 5000


def test_the_moments_accountant_pays_for_fewer_steps(images: Images, recipe: Make, tmp_path: Path) -> None:
    chosen = recipe(noise=1.5, epochs=500, loss_bound=None)
    ours = train(chosen, images, budget=BUDGET, out=tmp_path / "pld")
    theirs = train(chosen, images, budget=BUDGET, out=tmp_path / "moments", accountant="moments")
    assert theirs.steps < ours.steps
    assert theirs.guarantee.accountant == "moments"
    assert theirs.guarantee.epsilon <= 3.0


def test_other_fronts_and_heads(images: Images, recipe: Make, tmp_path: Path) -> None:
    outcome = train(recipe(front=Pixels(flat=False), model=Linear()), images, budget=BUDGET, out=tmp_path)
    assert outcome.test_accuracy > 0.8
    assert len(Ledger.load(tmp_path / "ledger.jsonl").entries) == 1


def test_a_seed_repeats_the_run_and_is_marked(images: Images, recipe: Make, tmp_path: Path) -> None:
    first, second = (train(recipe(epochs=1), images, budget=BUDGET, out=tmp_path / name, seed=5) for name in "ab")
    other = train(recipe(epochs=1), images, budget=BUDGET, out=tmp_path / "c", seed=6)
    weights = [torch.cat([p.flatten() for p in each.model.parameters()]) for each in (first, second, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    facts = json.loads((tmp_path / "a/run.json").read_text())
    assert "Not private" in " ".join(facts["notes"]) and facts["seed"] == 5
    assert not any(entry["private"] for point in facts["history"] for entry in point["metrics"].values())
    assert Ledger.load(tmp_path / "a/ledger.jsonl").header.secure_randomness is False


def test_without_a_seed_no_two_runs_are_alike(images: Images, recipe: Make, tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = train(recipe(epochs=1), images, budget=BUDGET, out=tmp_path / "a")
    torch.manual_seed(0)
    second = train(recipe(epochs=1), images, budget=BUDGET, out=tmp_path / "b")
    assert not torch.equal(next(first.model.parameters()), next(second.model.parameters()))


@pytest.mark.parametrize(
    ("settings", "epsilon", "message"),
    [
        ({"lot_size": 601}, 3.0, "lot_size is 601; it must be at most the number of records, 600"),
        ({"front": Pca(dimensions=65)}, 3.0, "dimensions is 65; the images have only 64"),
        ({"front": Pca(dimensions=4, noise_multiplier=0.5)}, 3.0, "besides the gradients costs"),
        ({"noise": 1.0}, 0.5, "pays for 0 steps and one epoch has 10"),
        ({"clipping": PerLayer}, 3.0, "cannot be written down"),
    ],
)
def test_an_impossible_recipe_is_refused_before_any_file_is_written(
    images: Images, recipe: Make, tmp_path: Path, settings: dict[str, Any], epsilon: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(recipe(**settings), images, budget=Budget(epsilon, 1e-5), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_and_labels_must_belong_together(images: Images, recipe: Make, tmp_path: Path) -> None:
    from dataclasses import replace

    for wrong in (replace(images, train_labels=images.test_labels), replace(images, test=images.test[:3])):
        with pytest.raises(ValueError, match="images and"):
            train(recipe(), wrong, budget=BUDGET, out=tmp_path / "run")
    with pytest.raises(ValueError, match="must be bytes"):
        train(recipe(), replace(images, train=images.train.float()), budget=BUDGET, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_directory_in_use_is_left_alone(images: Images, recipe: Make, tmp_path: Path) -> None:
    train(recipe(epochs=1), images, budget=BUDGET, out=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ValueError, match="holds a finished run; choose another"):
        train(recipe(), images, budget=BUDGET, out=tmp_path / "run")
    with pytest.raises(ValueError, match="is finished; there is nothing to resume"):
        train(recipe(epochs=1), images, budget=BUDGET, out=tmp_path / "run", resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/diary.txt").write_text("mine")
    for taken in (tmp_path / "notes", tmp_path / "notes/diary.txt"):
        with pytest.raises(ValueError, match="holds other files"):
            train(recipe(), images, budget=BUDGET, out=taken)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["diary.txt"]


def test_features_can_be_kept_for_later_runs(images: Images, recipe: Make, tmp_path: Path) -> None:
    for name in "ab":
        chosen = recipe(front=Pixels(), epochs=1)
        train(chosen, images, budget=BUDGET, out=tmp_path / name, cache=tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 2  # of the training and of the test images, made once


def test_scattering_is_trained_on_and_read_back(images: Images, recipe: Make, tmp_path: Path) -> None:
    front = Scattering(angles=4, normalisation=Whitened(statistics=Statistics(noise_multiplier=30.0)))
    outcome = train(recipe(front=front, model=Linear()), images, budget=BUDGET, out=tmp_path)
    ledger = Ledger.load(tmp_path / "ledger.jsonl")
    charges = [step for step, count in ledger.entries[:-1] for _ in range(count)]
    assert charges == list(front.charges(600)) != []
    scores = Trained.load(tmp_path).scores(images.test)
    right = (scores.argmax(1) == images.test_labels).float().mean().item()
    assert right == pytest.approx(outcome.test_accuracy, abs=0.03)  # features were kept in half precision


def test_a_kernel_is_trained_on_and_read_back(images: Images, recipe: Make, tmp_path: Path) -> None:
    front = GaussianKernel(
        scattering=Scattering(angles=4, normalisation=Grouped(groups=5)), patches=Patches(first=16, second=64)
    )
    outcome = train(recipe(front=front, model=Linear(), epochs=2), images, budget=BUDGET, out=tmp_path)
    assert len(Ledger.load(tmp_path / "ledger.jsonl").entries) == 1, "only the gradients are charged"
    right = (Trained.load(tmp_path).scores(images.test).argmax(1) == images.test_labels).float().mean().item()
    assert right == pytest.approx(outcome.test_accuracy, abs=0.03) and right > 0.6


def test_a_histogram_of_norms_is_paid_for_and_shown(images: Images, recipe: Make, tmp_path: Path) -> None:
    asked = recipe(epochs=1, norms=NormHistogram(noise_multiplier=20.0))
    outcome = train(asked, images, budget=BUDGET, out=tmp_path / "run")
    facts = json.loads((tmp_path / "run/run.json").read_text())
    held = facts["gradient_norms"]
    assert held["private"] is True and held["group"] == "norms/histogram"
    assert len(held["edges"]) == len(held["counts"]) + 1
    assert sum(held["counts"]) == pytest.approx(600, abs=7 * 20 * math.sqrt(len(held["counts"])))
    entries = Ledger.load(tmp_path / "run/ledger.jsonl").entries
    assert entries[-1] == (asked.norms.charge(), 1)  # type: ignore[union-attr]
    assert 2.99 < outcome.guarantee.epsilon <= 3.0  # and the noise of training was solved with it in mind
    other = train(recipe(epochs=1), images, budget=BUDGET, out=tmp_path / "not")
    assert outcome.noise_multiplier > other.noise_multiplier
    page = report(tmp_path / "run").read_text()
    assert 'id="norms"' in page and "there is no histogram" not in page
    assert 'id="norms"' not in report(tmp_path / "not").read_text()


def test_a_histogram_is_released_once(images: Images, recipe: Make, tmp_path: Path, monkeypatch: Any) -> None:
    asked = recipe(epochs=1, norms=NormHistogram(noise_multiplier=20.0))

    def gone(*_: Any) -> None:
        raise RuntimeError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["tacit.recipes.train"], "write_tensors", gone)
        with pytest.raises(RuntimeError, match="gone"):
            train(asked, images, budget=BUDGET, out=tmp_path, save_every=0.0)
    first = json.loads((tmp_path / "run.json").read_text())["gradient_norms"]
    train(asked, images, budget=BUDGET, out=tmp_path, resume=True)
    assert json.loads((tmp_path / "run.json").read_text())["gradient_norms"] == first
    assert [count for _, count in Ledger.load(tmp_path / "ledger.jsonl").entries] == [1, 10, 1]


def test_a_histogram_that_was_lost_with_the_budget_is_left_out(
    images: Images, recipe: Make, tmp_path: Path, monkeypatch: Any
) -> None:
    asked = recipe(epochs=1, norms=NormHistogram(noise_multiplier=3.0))

    def gone(*_: Any) -> None:
        raise RuntimeError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["tacit.recipes.train"], "gradient_norms", gone)
        with pytest.raises(RuntimeError, match="gone"):
            train(asked, images, budget=BUDGET, out=tmp_path, save_every=0.0)
    outcome = train(asked, images, budget=BUDGET, out=tmp_path, resume=True)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert "gradient_norms" not in facts and any("histogram" in note for note in facts["notes"])
    assert outcome.guarantee.epsilon <= 3.0
