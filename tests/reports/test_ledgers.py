"""Reports from bare ledgers of every kind: each claims what the accountants prove, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from reports.conftest import gaussian
from reports.html import Page
from tacit.accounting import ACCOUNTANTS, guarantee
from tacit.accounting.guarantee import rounded_up
from tacit.ledger import (
    Everyone,
    FixedSize,
    GaussianSum,
    Header,
    LaplaceSum,
    Ledger,
    Poisson,
    Selection,
    Shuffled,
    SparseVector,
    Step,
)
from tacit.reports import report
from tacit.reports.events import rows
from tacit.reports.findings import Run, find

Entries = Sequence[tuple[Step, int]]
LAPLACE = Step(Everyone(), (LaplaceSum(group="counts", clip_norm=1.0, scale=8.0, dimension=4),))
SPARSE = Step(Everyone(), (SparseVector(group="upload", threshold_epsilon=0.2, release_epsilon=0.1, releases=7),))
TUNED = Step(
    Everyone(),
    (Selection(group="best", trials="poisson", mean=5.0, candidate=((gaussian(4.0, Poisson(rate=0.01)), 100),)),),
)
KINDS: dict[str, tuple[Entries, dict[str, Any], list[str]]] = {
    "laplace": ([(LAPLACE, 12)], {}, ["counts 1 (L1) Laplace, scale 8", "no sampling"]),
    "sparse vector": ([(SPARSE, 3)], {}, ["upload, at most 7", "sparse vector: ε 0.2 threshold + 0.1 answers"]),
    "mixed": ([(LAPLACE, 2), (SPARSE, 1), (gaussian(2.0, Poisson(rate=0.01, records=10_000)), 100)], {}, ["4–103 100"]),
    "user": (
        [(gaussian(3.0, Poisson(rate=0.1, records=500, unit="user")), 40)],
        {"unit": "user"},
        ["user-level (ε", "One user.", "Several users that belong together"],
    ),
    "shuffled": (
        [(gaussian(3.0, Shuffled(lots=10, epoch=i, records=1000, assignment="independent")), 10) for i in range(5)],
        {},
        ["shuffled (no amplification claimed)", "no amplification by sampling is claimed", "1–50 50 shuffled, 1 of 10"],
    ),
    "fixed size": (
        [(gaussian(2.0, FixedSize(size=10, records=1000)), 50)],
        {"adjacency": "replace-one"},
        [
            "replaced by another (replace-one)",
            "10 of 1000 without replacement",
            "moments accountant (λ ≤ 32): no proof",
        ],
    ),
    "tuned": (
        [(TUNED, 1)],
        {},
        [
            "Hyperparameter search Charged: the ledger has the best of K secret runs, no other one seen (K Poisson, 5",
            "the chosen run only; tuning included:",
            "NOT the other runs, their number or their scores",
            "in each run: 1–100 100 Poisson, q = 0.01 gradients 2 σ 8 4 4",
            "(pld)",
        ],
    ),
}


def read(path: Path, **options: Any) -> str:
    page = Page(report(path, **options).read_text("utf-8"))
    assert page.mistakes == []
    return page.text


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_ledger(written: Callable[..., Path], kind: str) -> None:
    entries, header, words = KINDS[kind]
    path = written(entries, **header)
    text = read(path)
    found = guarantee(entries, Header(**header), delta=1e-5)
    assert f"(ε ≤ {rounded_up(found.epsilon)}, δ = 1e-05)" in text
    for word in [*words, "made from a ledger alone", f"Ledger digest {Ledger.load(path).digest}"]:
        assert word in text
    assert path.with_name("ledger.report.html").exists()


def test_a_million_steps(written: Callable[..., Path]) -> None:
    entries = [(gaussian(4.0, Poisson(rate=0.001, records=10**6)), 10**6)]
    text = read(written(entries), delta=1e-7)
    assert "The 1000000 steps in the ledger" in text
    assert f"ε ≤ {rounded_up(guarantee(entries, Header(), delta=1e-7).epsilon)}" in text
    assert "1–1000000 1000000 Poisson, q = 0.001 of 1000000" in text
    assert "strong composition" in text and "(leaves the chart)" in text


def test_no_guarantee_is_said_loudly(written: Callable[..., Path]) -> None:
    for entries in (
        [(gaussian(2.0, FixedSize(size=10, records=1000)), 5)],
        [(gaussian(1e-9), 1)],
    ):
        path = written(entries)
        text = read(path)
        assert "NO GUARANTEE. No accountant has a proof" in text
        assert "No privacy guarantee is proved for this run." in text
        assert "ε ≤" not in text
        assert find(Run.load(path)).epsilon is None


def test_an_empty_ledger_released_nothing(written: Callable[..., Path], tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "empty.jsonl"):
        pass
    text = read(tmp_path / "empty.jsonl")
    assert "The ledger is empty: nothing was released." in text
    assert "(ε ≤ 0.00, δ = 1e-05)" in text


def test_ledger_text_is_untrusted_too(written: Callable[..., Path]) -> None:
    evil = "<script>x</script>"
    step = Step(Everyone(unit=evil), (GaussianSum(group=evil, clip_norm=1.0, noise_std=4.0),))
    text = read(written([(step, 2)], unit=evil, purpose=evil, fingerprint=evil, library=evil))
    assert text.count(evil) > 5


def test_extreme_numbers_are_drawn_or_left_out(written: Callable[..., Path]) -> None:
    queries = (
        GaussianSum(group="huge", clip_norm=1e300, noise_std=4e300),
        GaussianSum(group="tiny", clip_norm=1e-300, noise_std=4e-300),
    )
    assert "1e+300" in read(written([(Step(Everyone(), queries), 1)]))


def test_changing_clip_norm_is_one_row(written: Callable[..., Path]) -> None:
    """Adaptive clipping changes S and σ at every step; the table stays readable."""
    entries = []
    for i in range(300):
        norm = 1.0 + i / 1000
        query = GaussianSum(group="gradients", clip_norm=norm, noise_std=2.0 * norm)
        entries.append((Step(Poisson(rate=0.01, records=10_000), (query,)), 1))
    found, more = rows(entries)
    assert [(row.steps, row.count, row.clip_norm, row.noise) for row in found] == [
        ("1–300", 300, "1 to 1.299", "σ 2 to 2.598")
    ]
    assert more == 0
    assert "1 to 1.299" in read(written(entries))


def test_too_many_rows_are_counted() -> None:
    alternating = [(gaussian(2.0 + i % 2), 1) for i in range(400)]
    found, more = rows(alternating)
    assert [(row.steps, row.count) for row in found] == [("1–399, not all", 200), ("2–400, not all", 200)]
    assert more == 0
    found, more = rows([(gaussian(2.0 + i), 1) for i in range(400)], most=50)
    assert (len(found), more) == (50, 350)
    assert sum(row.count for row in rows([(gaussian(2.0 + i), 3) for i in range(40)])[0]) == 120


@pytest.mark.parametrize("kind", ["laplace", "mixed", "shuffled"])
@pytest.mark.usefixtures("whole")
def test_curve_is_above_what_neighbours_attain(written: Callable[..., Path], kind: str) -> None:
    entries, header, _ = KINDS[kind]
    facts = find(Run.load(written(entries, **header)))
    assert facts.guarantee is not None
    assert (facts.epsilon, 1e-5) in [(epsilon, found.upper) for epsilon, found in facts.curve]
    deltas = [found.upper for _, found in facts.curve]
    assert deltas == sorted(deltas, reverse=True)
    for epsilon, found in facts.curve:
        attained = ACCOUNTANTS["pld"].delta(facts.guarantee.composition, epsilon).lower or 0.0
        assert attained <= found.upper
        assert (found.lower or 0.0) <= found.upper


@pytest.mark.parametrize("shift", [0.5, 2.0])
@pytest.mark.usefixtures("whole")
def test_attack_bound_against_the_exact_trade_off(written: Callable[..., Path], shift: float) -> None:
    """The best test of N(μ, 1) against N(0, 1) has power Φ(Φ⁻¹(α) + μ); no bound may be below it."""
    facts = find(Run.load(written([(gaussian(1 / shift), 1)])))
    rates = [0.001, 0.01, 0.1, 0.5, 0.9]
    for rate, power in zip(rates, facts.attack_power(rates), strict=True):
        exact = norm.cdf(norm.ppf(rate) + shift)
        assert exact * (1 - 1e-9) <= power <= 1.1 * exact


@pytest.mark.usefixtures("whole")
def test_spending_ends_at_the_claim_and_never_falls(written: Callable[..., Path]) -> None:
    entries, header, _ = KINDS["mixed"]
    facts = find(Run.load(written(entries, **header)))
    by_name = {one.accountant: one for one in facts.spending}
    assert facts.epsilon is not None
    for name in ("pld", "rdp", "moments"):
        values = [epsilon for _, epsilon in by_name[name].points]
        assert values == sorted(values)
        assert by_name[name].points[-1][0] == 103
        assert [step for step, _ in by_name[name].points][:2] == [0, 1]
    assert by_name["pld"].points[-1][1] == pytest.approx(facts.epsilon, rel=2e-3)
    assert "one kind of step only" in by_name["strong"].refusal


def test_an_unfinished_write_in_the_ledger_is_reported(written: Callable[..., Path]) -> None:
    path = written([(LAPLACE, 3)])
    path.write_bytes(path.read_bytes() + b'{"kind":"st')
    assert "left unfinished by a crash: line 5 is torn and is left out; nothing was released for it." in read(path)
