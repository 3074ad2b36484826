"""The report of a real run: what it says, what it refuses to believe, and what it never lets through."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.conftest import train
from reports.html import Page
from tacit.accounting import account
from tacit.accounting.guarantee import rounded_up
from tacit.ledger import Ledger
from tacit.reports import model_card, report

EVIL = "<script>alert(1)</script>\"'&`|**x**[a](http://evil.example)"


def read(run: Path, **options: Any) -> Page:
    page = Page(report(run, **options).read_text("utf-8"))
    assert page.mistakes == []
    return page


def result(trained: Path, **changes: Any) -> dict[str, Any]:
    return json.loads((trained / "run.json").read_text())["result"] | changes


@pytest.mark.usefixtures("whole")
def test_says_what_the_checklists_ask_for(trained: Path, tmp_path: Path) -> None:
    began = time.process_time()
    text = read(trained, output=tmp_path / "report.html").text
    page = (tmp_path / "report.html").read_text("utf-8")
    assert time.process_time() - began < 5  # one and a half on an idle machine
    ledger = Ledger.load(trained / "ledger.jsonl")
    epsilon = rounded_up(account(ledger, delta=1e-5).epsilon)
    assert f"example-level (ε ≤ {epsilon}, δ = 1e-05), add/remove, Poisson + no sampling, all checkpoints" in text
    for words in (
        "Central.",
        "Protected unit One example.",
        "one has one example more (add/remove)",
        "all checkpoints",
        "The 31 steps in the ledger",
        "gradients, metrics/loss, pca",
        "Poisson, q = 0.1 of 900 (30 steps)",
        "Hyperparameter search Not charged",
        "the number of records (900)",
        "privacy loss distribution (pld)",
        "AES-256",
        "Floating point",
        "Not audited.",
        "Not covered",
        "Metrics of this run that have no privacy: test_accuracy.",
        "test_accuracy: NOT private (computed on the public test set)",
        "loss: private, in the ledger",
        "strong composition: no proof",
        "The best possible attack",
        "Learning rate over the steps",
        "no histogram",
        "Version of torch",
        f"Steps in the ledger 31 Ledger digest {ledger.digest}",
        f"tacit account ledger.jsonl --expect {ledger.digest}",
        "front.dimensions 3",
        "A family of four For any 4 examples together, a family or one person's several records, ε is",
    ):
        assert words in text
    assert "`" not in text and "<code>tacit account LEDGER --delta 1e-05 --group N</code>" in page
    assert "abab" not in text  # a hash of the records lets a reader who knows the others test for one
    assert "NOT PRIVATE" not in text and "WRONG" not in text
    assert "OVER BUDGET" not in text
    assert str(trained) not in text  # no paths of this machine


def test_every_chart_has_a_title_and_a_description(trained: Path, tmp_path: Path) -> None:
    page = read(trained, output=tmp_path / "report.html")
    charts = [values for tag, values in page.tags if tag == "svg" and values.get("role") == "img"]
    assert len(charts) == 9  # one of them, by four accountants, behind a fold
    ids = {values.get("id") for _, values in page.tags}
    for chart in charts:
        assert all(name in ids for name in str(chart["aria-labelledby"]).split())


def test_table_lists_every_release(trained: Path, tmp_path: Path) -> None:
    text = read(trained, output=tmp_path / "report.html").text
    assert "1 1 everyone pca 1 σ 8 8 8" in text
    assert "2–31 30 Poisson, q = 0.1 of 900 gradients 0.51 σ 0.7689 1.508 1.5" in text
    assert "2–31 30 Poisson, q = 0.1 of 900 metrics/loss 3 σ 45 15 1.5" in text


def test_seeded_run_is_marked_first_of_all(tmp_path: Path) -> None:
    run = train(tmp_path / "run", steps=3, seed=7)
    page = read(run)
    assert page.text.split("Privacy report: ")[1].startswith("blobs, linear NOT PRIVATE. The run was seeded")
    first = next(values for tag, values in page.tags if tag == "p")
    assert first["class"] == "alarm"
    assert "NOT PRIVATE (seeded): example-level" in page.text
    assert "Meaning of this ε Nothing" in page.text
    assert "Best attack finds" not in page.text
    assert "**NOT PRIVATE. The run was seeded" in model_card(run)


def test_seed_named_by_run_json_alone(copied: Callable[..., Path]) -> None:
    assert "NOT PRIVATE if run.json is right: it names a seed" in read(copied(seed=0)).text


@pytest.mark.parametrize("delta", [1e-5, 1e-6])
def test_smaller_claim_is_called_wrong(trained: Path, copied: Callable[..., Path], delta: float) -> None:
    epsilon = account(Ledger.load(trained / "ledger.jsonl"), delta=delta).epsilon
    run = copied(result=result(trained, epsilon=0.99 * epsilon, delta=delta))
    text = read(run, delta=1e-5).text
    assert f"WRONG CLAIM. run.json says ε = {0.99 * epsilon:.4g} at δ = {delta:.3g}" in text
    assert f"the ledger proves ε = {rounded_up(epsilon)}" in text
    assert "WRONG CLAIM" in model_card(run)


def test_true_claim_is_not_called_wrong(trained: Path, copied: Callable[..., Path]) -> None:
    epsilon = account(Ledger.load(trained / "ledger.jsonl"), delta=1e-6).epsilon
    run = copied(result=result(trained, epsilon=epsilon, delta=1e-6))
    assert "WRONG CLAIM" not in read(run, delta=1e-5).text


def test_more_alarms(copied: Callable[..., Path]) -> None:
    run = copied(budget={"epsilon": 1.0, "delta": 1e-5}, finished=False, audit={"epsilon_lower": 3.5, "by": "x"})
    text = read(run).text
    assert "OVER BUDGET. The budget was ε = 1;" in text
    assert "REFUTED BY ITS AUDIT" in text
    assert "The run is not finished" in text
    assert "Worst-case canaries prove ε of at least 3.500" in text and "By x, no date." in text
    assert "δ TOO LARGE" in read(run, delta=0.01).text


def test_metric_called_private_but_not_charged(trained: Path, copied: Callable[..., Path]) -> None:
    metrics = {"train_accuracy": {"value": 0.9, "private": True}}
    history = [{"step": step, "epoch": 0.1 * step, "metrics": metrics} for step in (1, 2)]  # a dot is not drawn
    text = read(copied(history=history)).text
    assert "train_accuracy: NOT private" in text
    assert "Metrics of this run that have no privacy: train_accuracy." in text


def test_histogram_only_if_the_ledger_paid(copied: Callable[..., Path], tmp_path: Path) -> None:
    norms = {"edges": [0.0, 1.0, 2.0], "counts": [30, 70], "private": True, "group": "gradients"}
    run = copied(gradient_norms=norms)
    assert "Gradient norms of the records Released privately" in " ".join(read(run).text.split()).replace(
        "Gradient norms of the records Gradient norms of the records", "Gradient norms of the records"
    )
    for change in ({"group": "elsewhere"}, {"private": False}, {"edges": [0.0, 1.0]}, {"counts": [1, "x"]}):
        (run / "run.json").write_text(
            json.dumps(json.loads((run / "run.json").read_text()) | {"gradient_norms": norms | change})
        )
        assert "there is no histogram" in read(run).text


def test_untrusted_text_stays_text(copied: Callable[..., Path]) -> None:
    metrics = {
        f"accuracy{EVIL}": {"value": 0.5, "private": False, "note": EVIL},
        "loss": {"value": 1.0, "private": True},
    }
    run = copied(
        dataset={"name": EVIL, EVIL: EVIL, "fingerprint": EVIL},
        recipe={"name": EVIL, EVIL: {EVIL: [EVIL]}},
        versions={EVIL: EVIL},
        notes=[EVIL],
        started=EVIL,
        audit={EVIL: EVIL},
        history=[{"step": 1, "epoch": 1, "metrics": metrics}, {"step": 2, "epoch": 2, "metrics": metrics}],
    )
    page = read(run)  # no tag but ours, or `read` complains
    assert page.text.count("<script>alert(1)</script>") > 8
    card = model_card(run)
    assert "<script>" not in card
    assert "[a](http" not in card
    assert "**x**" not in card
    assert all(line.count("|") - line.count("\\|") in (0, 3) for line in card.splitlines() if "---" not in line)


def test_text_that_cannot_be_encoded_or_turns_around(copied: Callable[..., Path]) -> None:
    text = read(copied(dataset={"name": "a\ud800b\u202ec\x00d\n" + "long" * 1000})).text
    assert "Privacy report: a\ufffdb\ufffdc\ufffdd longlong" in text
    assert len(text) < 20_000


@pytest.mark.parametrize(
    "changes",
    [
        {"history": "x", "result": [], "dataset": 3, "recipe": None, "versions": [1], "notes": {"a": 1}, "budget": "b"},
        {"history": [1, {}, {"step": "x"}, {"step": 1e308, "epoch": -1e308, "metrics": {"accuracy": 3}}]},
        {"history": [{"step": 3, "epoch": -1, "learning_rate": -1e-300, "metrics": {"a loss": {"value": 1e300}}}]},
        {"history": [{"step": 0, "epoch": 0, "learning_rate": 0, "metrics": {"accuracy": {"value": 0}}}]},
        {"history": [], "result": {"epsilon": "0.1", "test_accuracy": 17}},
        {"recipe": {str(i): i for i in range(10_000)}},
        {"history": [{"step": i, "epoch": i, "learning_rate": 0.1} for i in range(20_000)]},
    ],
)
def test_odd_run_json_still_gives_a_report(copied: Callable[..., Path], changes: dict[str, Any]) -> None:
    page = read(copied(**changes))
    assert "ε ≤" in page.text
    assert len(page.text) < 60_000


def test_report_is_the_same_twice_and_changes_nothing(trained: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in trained.iterdir()}
    first = report(trained, output=tmp_path / "a.html").read_bytes()
    assert report(trained, output=tmp_path / "b.html").read_bytes() == first
    assert {path.name: path.read_bytes() for path in trained.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_model_card(trained: Path) -> None:
    card = model_card(trained)
    assert card.startswith("## Privacy: blobs, linear\n")
    assert "| **Claim** | example-level (ε ≤ " in card
    assert "Not covered:" in card
    assert "96" in card or "%" in card
    assert Ledger.load(trained / "ledger.jsonl").digest in card


@pytest.mark.parametrize(("lattice", "refused"), [(0.25, True), (2.0**-10, False)])
def test_a_chart_says_which_accountant_answered(lattice: float, refused: bool) -> None:
    """On a coarse lattice the default answers with Rényi bounds; a curve of them must not be called another's."""
    from tacit.ledger import GaussianSum, Ledger, Poisson, Step
    from tacit.reports.findings import _spending

    ledger = Ledger()
    query = GaussianSum(group="g", clip_norm=1.0, noise_std=2.0, noise="discrete", lattice=lattice)
    for _ in range(5):
        ledger.record(Step(Poisson(rate=0.1), (query,)))
    drawn = {each.accountant: each for each in _spending(ledger, 1e-5, {})}
    assert bool(drawn["pld"].refusal) == refused and bool(drawn["pld"].points) != refused
    assert drawn["rdp"].points


def test_charts_with_one_dot_are_left_out(copied: Callable[..., Path]) -> None:
    entry = {"step": 1, "epoch": 0.1, "learning_rate": 0.5, "metrics": {"test_accuracy": {"value": 0.9}}}
    page = read(copied(history=[entry]))
    names = {values.get("aria-labelledby", "").split("-")[0] for tag, values in page.tags if tag == "svg"}
    assert "epsilon" in names and not {"accuracy", "rate"} & names
