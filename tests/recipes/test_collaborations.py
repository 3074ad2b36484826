"""Paper 5 computed again: its numbers, the experiments on something tiny, and runs that are shared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.collaboration import (
    Baselines,
    Claim,
    GaussianPrivacy,
    LocalDpSgd,
    Problem,
    Protocol,
    Settings,
    SparseVectorPrivacy,
)
from tacit.data import Images
from tacit.models import shokri
from tacit.recipes.reproduction import (
    Result,
    Setting,
    alone,
    collaborations,
    convergence,
    distributed,
    noisy,
    selections,
)
from tacit.recipes.reproduction.collaborations import PUBLIC, SHARES, Baseline, Found, Job, Selective
from tacit.recipes.reproduction.plans import FULL, RATES, Limits, Net
from tacit.recipes.reproduction.plans import QUICK as QUICKLY

QUICK = [True, False]


def setting(directory: Path, *, quick: bool = True, seeds: int = 1) -> Setting:
    return Setting.make(quick=quick, runs=directory / "runs", seeds=seeds)


def pictures(name: str, fetch: bool) -> Images:
    generator = torch.Generator().manual_seed(3)
    shape = {"mnist": (1, 28, 28), "svhn": (3, 32, 32)}[name]
    labels = torch.arange(360) % 10
    pixels = torch.randint(0, 200, (360, *shape), dtype=torch.uint8, generator=generator)
    pixels[:, :, 5:9, 5:9] += (labels * 5).to(torch.uint8)[:, None, None, None]
    parts = {
        "train": pixels[:300], "train_labels": labels[:300], "test": pixels[300:], "test_labels": labels[300:],
    }  # fmt: skip
    return Images(name=name, classes=10, source="made up", fingerprint=name, **parts)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Made-up pictures, and collaborations that are only noted down."""
    asked: list[Settings] = []

    def simulate(problem: Problem, settings: Settings, *, baselines: bool, progress: Any) -> Any:
        asked.append(settings)
        progress(type("Progress", (), {"done": 1, "total": 2})())
        whole = type("Whole", (), {"epsilon": 7.5})()
        per = settings.privacy.epsilon_per_epoch if isinstance(settings.privacy, SparseVectorPrivacy) else None
        claim = None if settings.privacy is None else Claim(whole=whole, per_parameter=per)
        history = [0.5 + 0.001 * epoch for epoch in range(settings.epochs)]
        return type("Found", (), {"history": history, "claim": claim, "bytes_up": 8})()

    def baselines(problem: Problem, settings: Settings) -> Baselines:
        return Baselines(standalone=0.3, centralised=[0.6] * settings.epochs)

    monkeypatch.setattr(collaborations, "load", pictures)
    monkeypatch.setattr(collaborations, "simulate", simulate)
    monkeypatch.setattr(collaborations, "baselines", baselines)
    return asked


def check(result: Result) -> None:
    assert result.rows and result.comparisons and result.notes
    assert all(list(row) == list(result.rows[0]) for row in result.rows)
    json.dumps([dict(row) for row in result.rows], allow_nan=False)
    assert all(len(line.x) == len(line.y) or line.style == "level" for panel in result.panels for line in panel.lines)


def test_the_papers_numbers_are_as_printed() -> None:
    printed = """
    0.9917 0.9914 0.9871 0.9645 0.9316
    0.9299 0.9312 0.8986 0.7481 0.8182
    0.9810 0.98 0.9707 0.9171 0.8832
    0.8476 0.8394 0.7833 0.6542 0.5136
    """
    ours = [[value / 100 for value in row.values()] for row in distributed.TABLE.values()]
    assert ours == [pytest.approx([float(text) for text in row.split()]) for row in printed.split("\n")[1:-1]]
    assert list(distributed.TABLE) == [("mnist", "cnn"), ("svhn", "cnn"), ("mnist", "mlp"), ("svhn", "mlp")]
    networks = {
        ("mnist", "mlp"): shokri.mlp(channels=1), ("svhn", "mlp"): shokri.mlp(channels=3),
        ("mnist", "cnn"): shokri.mnist_cnn(), ("svhn", "cnn"): shokri.svhn_cnn(),
    }  # fmt: skip
    for which, network in networks.items():
        assert sum(parameter.numel() for parameter in network.parameters()) == noisy.PARAMETERS[which]


@pytest.mark.parametrize("quick", QUICK)
def test_figure_9(quick: bool, tiny: list[Settings], tmp_path: Path) -> None:
    result = distributed.figure9(setting(tmp_path, quick=quick))
    check(result)
    assert {settings.protocol for settings in tiny} == set(Protocol)
    assert {settings.upload for settings in tiny} == {0.001, 0.01, 0.1, 1.0}
    assert {settings.download for settings in tiny} == {0.1, 0.5, 1.0}
    assert {settings.participants for settings in tiny} == ({30, 90} if quick else {30, 90, 150})
    used: dict[tuple[int, bool, float], int] = {}
    for s in tiny:
        key = (s.participants, s.share == 0.012, s.upload)
        used[key] = max(used.get(key, 0), s.seed or 0)
    # (the CNN on MNIST has one seed, the MLP more)
    more = {(30, True, 1.0): 3, (30, True, 0.1): 3, (30, True, 0.01): 3, (30, True, 0.001): 6, (30, False, 0.1): 3}
    assert used == {key: more.get(key, 1) if quick else 1 for key in used}
    assert any(note.startswith("Seeds (of 30 participants): 1 to 6 for MNIST, MLP, θ_u = 0.001; 1 to 3") for note in
               result.notes) is quick  # fmt: skip
    assert {row["data"] for row in result.rows} == {"mnist", "svhn"}
    assert {row["model"] for row in result.rows} == {"mlp", "cnn"}
    ours = {c.what.split(" (by seed")[0]: c for c in result.comparisons}
    found = ours["MNIST, MLP, N = 30, round robin, θ_u = 0.1"]
    assert (found.paper, round(found.ours or 0, 1)) == (98.0, 51.9 if quick else 57.9)
    assert ours["MNIST, MLP, pooled records of 30"].ours == pytest.approx(60.0)
    assert ours["MNIST, MLP, θ_u = 0.1 minus pooled, last epochs"].ours == pytest.approx((found.ours or 0) - 60)
    quarter = ours["MNIST, MLP, θ_u = 0.1 minus pooled, last quarter"].ours  # the mean of 0.5 + 0.001 of each epoch
    assert quarter == pytest.approx((found.ours or 0) - 60 - (0.2 if quick else 0.95))
    for words in ("best", "last"):
        worst = ours[f"MNIST, MLP: the worst collaboration, minus standalone, {words} epoch"].ours
        assert worst == pytest.approx((found.ours or 0) - 30)
    assert ours["SVHN, MLP: round robin minus asynchronous, θ_u = 0.1, last quarter"].ours == 0
    for upload, times in (("0.001", 6), ("0.01", 3), ("0.1", 3), ("1", 3)):
        title = f"MNIST, MLP: round robin minus asynchronous, θ_u = {upload}, best epoch"
        assert ours[title].what == title + (f" (by seed {', '.join(['0.00'] * times)})" if quick else "")
    behind = ours["SVHN, MLP, θ_u = 0.1 minus pooled"]
    assert behind.what.count(",") == (4 if quick else 2) and behind.paper == pytest.approx(-0.82)
    assert any("26,000" in note for note in result.notes)
    assert any(note.startswith("Quick") for note in result.notes) is quick


@pytest.mark.parametrize("quick", QUICK)
def test_figures_10_and_11(quick: bool, tiny: list[Settings], tmp_path: Path) -> None:
    result = selections.figure10(setting(tmp_path, quick=quick))
    check(result)
    ways = {(settings.selection, settings.limit) for settings in tiny if settings.share == 0.012}
    assert ("threshold", 0.001) in ways and {how for how, _ in ways} == {"largest", "threshold"}
    by_upload = {
        settings.upload: (settings.limit, settings.threshold)
        for settings in tiny
        if settings.share == 0.012 and settings.selection == "threshold" and settings.threshold != 0.0001
    }
    assert len(set(by_upload.values())) == len(by_upload) > 1  # γ and τ go with θ_u
    rates = {(s.selection, s.learning_rate) for s in tiny if s.share == 0.012 and s.upload == 0.001}
    assert rates == ({("largest", 0.2), ("threshold", 0.1)} if quick else set())
    assert any("(MNIST, MLP, θ_u = 0.001: 0.2)" in note for note in result.notes) is quick
    assert any("last epoch" in c.what for c in result.comparisons)
    tiny.clear()
    result = convergence.figure11(setting(tmp_path, quick=quick))
    check(result)
    slow = {settings.learning_rate for settings in tiny if settings.participants == 30}
    assert slow == ({0.01, 0.002} if quick else {0.01, 0.005})  # the others were there already
    assert {line.style for line in result.panels[0].lines} == {"line", "dashed"}
    assert (
        any(note == "Seeds (of 30 participants): 1 to 3 for MNIST, MLP; 1 for the rest." for note in result.notes)
        is quick
    )
    assert all(c.paper is None for c in result.comparisons)


@pytest.mark.parametrize("quick", QUICK)
def test_figure_13_has_both_kinds_of_epsilon(quick: bool, tiny: list[Settings], tmp_path: Path) -> None:
    result = noisy.figure13(setting(tmp_path, quick=quick))
    check(result)
    kinds = {type(settings.privacy) for settings in tiny}
    assert kinds == {SparseVectorPrivacy, GaussianPrivacy, LocalDpSgd}
    assert [panel.x for panel in result.panels][-2:] == ["honest ε, whole training"] * 2
    assert all(panel.x == "ε/c, as the paper counts" for panel in result.panels[:-2])
    for settings in tiny:
        if isinstance(settings.privacy, SparseVectorPrivacy):
            size = noisy.PARAMETERS["mnist" if settings.share == 0.012 else "svhn", "mlp" if quick else "cnn"]
            per_parameter = settings.privacy.epsilon_per_epoch / int(settings.upload * size)
            assert any(per_parameter == pytest.approx(value) for value in noisy.AXIS)
    assert any("bounds nothing that is released" in note for note in result.notes)
    assert {row["epsilon_honest"] for row in result.rows} == {7.5}


def test_figure_12_reports_the_mechanisms_exact_cost_and_noise(tmp_path: Path) -> None:
    result = noisy.figure12(setting(tmp_path))
    check(result)
    assert not (tmp_path / "runs").exists()
    epochs = QUICKLY.nets["mnist", "mlp"].noisy_epochs
    for row in result.rows:
        whole = 5 / 9 * float(row["epsilon_per_parameter"]) * int(row["releases"]) * epochs
        assert row["epsilon_whole"] == pytest.approx(whole, rel=1e-9)
        spread = 2**0.5 * 18 / float(row["epsilon_per_parameter"])
        assert row["noise_of_value_over_gamma"] == pytest.approx(spread)
    sparse, gaussian = result.panels[1].lines
    assert all(s > 50 * g for s, g in zip(sparse.y, gaussian.y, strict=True))
    assert result.panels[0].log_y and all(c.bound for c in result.comparisons)


def test_the_worst_collaboration_is_the_one_that_gained_least() -> None:
    net = QUICKLY.nets["mnist", "mlp"]

    def found(*history: float) -> list[Found]:
        return [Found(history=history, epsilon=None, per_parameter=None, bytes_up=0, cpu_seconds=0.0)]

    good, dipped = net.job(), net.job(protocol=Protocol.ASYNCHRONOUS, participants=90)
    alone = {
        net: [Baseline(standalone=0.6, centralised=(0.9,), standalone_rate=0.1, centralised_rate=0.1)],
        QUICKLY.nets["svhn", "mlp"]: [],
    }
    runs = {good: found(0.7, 0.8), dipped: found(0.85, 0.55), QUICKLY.nets["svhn", "mlp"].job(): found(0.1)}
    best, last = distributed.worst(net, runs, alone)
    assert (best.ours, last.ours) == (pytest.approx(20.0), pytest.approx(-5.0))
    assert "best epoch" in best.what and "last epoch" in last.what


def test_limits_are_those_of_the_nearest_upload_that_was_calibrated() -> None:
    limits = (
        Limits(upload=0.01, bound=0.2, threshold=0.1, selection="largest"),
        Limits(upload=0.1, bound=0.02, threshold=0.01, selection="threshold", asynchronous=0.001),
    )
    net = Net(
        data="svhn", model="mlp", epochs=3, noisy_epochs=2, learning_rate=0.1, share=1 / 30, limits=limits,
        baseline_rates=(0.1,), repeats=1, baseline_repeats=1,
    )  # fmt: skip
    found = {upload: net.job(upload=upload).settings for upload in (0.001, 0.01, 0.1, 1.0)}
    assert [settings.bound for settings in found.values()] == [0.2, 0.2, 0.02, 0.02]
    assert [settings.threshold for settings in found.values()] == [0.1, 0.1, 0.01, 0.01]
    assert [settings.selection for settings in found.values()] == ["largest", "largest", "threshold", "largest"]
    assert net.job(bound=1.0, participants=4).settings.bound == 1.0
    late = [net.job(upload=upload, protocol=Protocol.ASYNCHRONOUS).settings for upload in (0.01, 0.1, 1.0)]
    assert [settings.bound for settings in late] == [0.2, 0.001, 0.001]
    assert {settings.protocol for settings in late} == {Protocol.ASYNCHRONOUS}
    assert net.job(protocol=Protocol.RANDOM_ORDER).settings.bound == 0.02
    rated = replace(net, limits=(replace(limits[1], largest_rate=0.3),))
    by_way = {how: rated.job(selection=how).settings for how in ("largest", "threshold")}
    assert (by_way["largest"].learning_rate, by_way["threshold"].learning_rate) == (0.3, 0.1)
    assert rated.job(selection="largest", learning_rate=0.01).settings.learning_rate == 0.01
    assert rated.job().settings.learning_rate == 0.1


def test_the_plans_name_networks_that_they_have() -> None:
    for plan in (QUICKLY, FULL):
        for table in (
            plan.exchanges,
            plan.downloads,
            plan.selections,
            plan.rates,
            plan.sparse,
            plan.others,
        ):
            assert set(table) <= set(plan.nets)
        assert all(which == (net.data, net.model) for which, net in plan.nets.items())
        assert all(net.learning_rate == RATES[net.data, net.model] in net.baseline_rates for net in plan.nets.values())
        assert set(plan.others) <= set(plan.sparse)
        for net in plan.nets.values():
            assert all(0 < known.threshold <= known.bound for known in net.limits)


def test_baselines_have_the_learning_rate_that_is_best_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled = {0.1: {1: [0.5, 0.9, 0.4], 2: [0.5, 0.5, 0.5]}, 0.2: {1: [0.8], 2: [0.7]}, 0.3: {1: [0.74], 2: [0.74]}}
    single = {0.1: 0.2, 0.2: 0.1, 0.3: 0.3}

    def baselines(problem: Problem, settings: Settings) -> Baselines:
        assert settings.seed is not None
        history = pooled[settings.learning_rate][settings.seed]
        return Baselines(standalone=single[settings.learning_rate] + 0.01 * settings.seed, centralised=history)

    monkeypatch.setattr(collaborations, "load", pictures)
    monkeypatch.setattr(collaborations, "baselines", baselines)
    job = Job(data="mnist", model="mlp", settings=Settings(learning_rate=7.0))
    found = collaborations.fair(setting(tmp_path, seeds=2), job, (0.1, 0.2, 0.3))
    assert found == [
        Baseline(standalone=0.31, centralised=(0.8,), standalone_rate=0.3, centralised_rate=0.2),
        Baseline(standalone=0.32, centralised=(0.7,), standalone_rate=0.3, centralised_rate=0.2),
    ]


def test_no_local_epoch_ends_with_a_step_on_a_few_images() -> None:
    sizes = {"mnist": 60_000, "svhn": 26_000}
    held = {name: round(share * sizes[name] * (1 - PUBLIC[name])) for name, share in SHARES.items()}
    assert held == {"mnist": 600, "svhn": 864}
    assert all(records % 32 == 0 or records % 32 >= 16 for records in held.values())


def test_participants_hold_no_public_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaborations, "load", pictures)
    for name, held in (("mnist", 250), ("svhn", 300)):
        data = collaborations._Data(name)
        private = data.private("mlp")
        assert torch.equal(private.inputs, data.problem("mlp").inputs[:held])
        assert torch.equal(private.labels, data.problem("mlp").labels[:held])
    assert round(SHARES["mnist"] * (1 - PUBLIC["mnist"]) * 60_000) == 600


def test_a_collaboration_is_simulated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaborations, "load", pictures)
    settings = Settings(participants=2, epochs=2, share=0.1, privacy=LocalDpSgd(epsilon=5.0, delta=1e-5))
    job = Job(data="mnist", model="mlp", settings=settings)
    told: list[tuple[str, float]] = []
    runs = replace(setting(tmp_path, seeds=2), tell=lambda words, share: told.append((words, share)))
    (first,) = collaborations.collaborations(runs, [job]).values()
    assert len(first) == 2 and first[0] != first[1] and first[0].epsilon is not None
    assert 4.5 < first[0].epsilon <= 5.0 and first[0].per_parameter is None and first[0].bytes_up > 0
    assert first[0].best == max(first[0].history) and first[0].last == first[0].history[-1]
    assert replace(first[0], history=(9.0, *[1.0] * 5, 2.0, 4.0)).late == 3.0 and first[0].late == first[0].last
    assert told[0][1] == 0 and told[-1][1] <= 1 and [s for _, s in told] == sorted(s for _, s in told)
    base = collaborations.lonely(runs, [job])
    assert [len(found.centralised) for found in base[job]] == [2, 2]
    assert job.baseline.settings.privacy is None

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("made again")

    for name in ("simulate", "baselines"):
        monkeypatch.setattr(collaborations, name, never)
    assert collaborations.collaborations(runs, [job])[job] == first
    assert collaborations.lonely(runs, [job]) == base
    with pytest.raises(AssertionError, match="made again"):
        collaborations.collaborations(runs, [replace(job, settings=replace(settings, upload=0.2))])


def test_selective_sgd_of_one_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaborations, "load", pictures)
    small = alone.Size(records=12, held=8, tests=10, epochs=2, epochs_32=1)
    monkeypatch.setattr(alone, "QUICK", dict.fromkeys(alone.QUICK, small))
    figure = alone.figure8(setting(tmp_path))
    check(figure)
    assert len(figure.panels) == 4 and [line.label for line in figure.panels[0].lines] == [
        "SGD", "θ = 0.1", "θ = 0.01", "θ = 0.001",
    ]  # fmt: skip
    assert [len(panel.lines[0].x) for panel in figure.panels] == [2, 1, 2, 1]
    assert any("2 epochs (1 with M = 32)" in note for note in figure.notes)
    before = set((tmp_path / "runs").iterdir())
    table = alone.table4(setting(tmp_path))
    check(table)
    behind = [c for c in table.comparisons if c.what.endswith("θ = 0.1 minus SGD")]
    whole, tenth = (c.ours or 0 for c in table.comparisons[:2])
    assert len(behind) == 4 and behind[0].ours == pytest.approx(tenth - whole)
    assert behind[0].paper == pytest.approx(-0.03)
    others = [c for c in table.comparisons if c not in behind]
    assert len(others) == 20
    assert [c.paper for c in others[:5]] == [99.17, 99.14, 98.71, 96.45, 93.16]
    assert len(set((tmp_path / "runs").iterdir()) - before) == 12  # the CNNs' runs with M = 1 are those of the figure


def test_selective_sgd_is_sgd_where_everything_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaborations, "load", pictures)
    job = Selective(
        data="mnist", model="mlp", records=60, tests=60, theta=1.0, batch_size=10, learning_rate=0.1, epochs=2
    )
    problem = collaborations._cut(collaborations._Data("mnist").problem("mlp"), job)
    ours = list(collaborations._epochs(problem, job, 5))
    model = problem.network(5)
    optimizer, order = torch.optim.SGD(model.parameters(), lr=0.1), torch.Generator().manual_seed(5)
    for _ in range(2):
        for rows in torch.randperm(60, generator=order).split(10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(problem.inputs[rows]), problem.labels[rows]).backward()
            optimizer.step()
    assert ours[-1] == collaborations.accuracy(model, problem)
