"""User-level private averaging over Flower's messages: what a participant can do to the result, and what it costs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flower.helpers import Killed, MemoryGrid, network
from tacit.accounting import account
from tacit.collaboration import FlatParameters
from tacit.flower import Averager, Averaging, average, update_app
from tacit.ledger import Budget, BudgetExceeded, Ledger, Poisson
from tacit.randomness import SeededSource

SIZE = FlatParameters(network()).vector.size
INITIAL = FlatParameters(network()).vector.copy()
CHANGE = "tacit.change"
LOOSE = Budget(1e6, 1e-5)
GRID = 2e-5  # noisy sums are rounded to a public grid, which is finer than this for these settings


def averaging(folder: Path, **changes: Any) -> Averaging:
    facts: dict[str, Any] = {
        "population": 4,
        "lot_size": 4,
        "clip_norm": 0.5,
        "rounds": 1,
        "budget": LOOSE,
        "noise_multiplier": 1.0,
        "pause": 0.001,
        "patience": 5.0,
        "seed": 3,
    }
    return Averaging(network=network, folder=folder / "server", **(facts | changes))


def direction(node: int) -> np.ndarray:
    return np.random.default_rng(node).normal(size=SIZE).astype(np.float32)


def moves_by(scale: float) -> Callable[[nn.Module, Context], None]:
    def train(model: nn.Module, context: Context) -> None:
        FlatParameters(model).vector[:] += scale * direction(context.node_id)

    return train


def replying(values: Callable[[int], Any]) -> ClientApp:
    """Participants that do not clip, or send something else altogether."""

    def handle(message: Message, context: Context) -> Message:
        return Message(RecordDict({CHANGE: values(context.node_id)}), reply_to=message)

    app = ClientApp()
    app.train()(handle)
    return app


def vector(values: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"values": Array(values)})


# -- arithmetic ------------------------------------------------------------------------------------------------------


def test_rounds_equal_ten_lines_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is replaced by a fixed number of standard deviations, the sample by a list."""

    def fixed(self: SeededSource, tensor: torch.Tensor, std: float = 1.0) -> torch.Tensor:
        return tensor.fill_(0.25 * std)

    samples = [[0, 2], [], [1, 2, 3], [3]]
    drawn = iter(samples)
    monkeypatch.setattr(SeededSource, "normal_", fixed)
    monkeypatch.setattr(SeededSource, "add_normals_", lambda self, sums: [t.add_(0.25 * std) for t, std, _ in sums])
    monkeypatch.setattr("tacit.sampling.PoissonSampler._choose", lambda self, rate: np.array(next(drawn), dtype=int))
    nodes, scales = [101, 102, 103, 104], 0.4
    settings = averaging(
        tmp_path, lot_size=2, rounds=4, noise_multiplier=0.8, learning_rate=0.7, budget=Budget(1e6, 1e-5)
    )
    found = average(MemoryGrid(update_app(network, moves_by(scales)), nodes), settings)

    w, S, z, expected = INITIAL.astype(np.float64), 0.5, 0.8, 4 * (2 / 4)
    for sample in samples:
        total = np.zeros(SIZE)
        for slot in sample:
            change = scales * direction(nodes[slot]).astype(np.float64)
            total += change * min(1.0, S / np.linalg.norm(change))
        w = w + 0.7 * (total + 0.25 * z * S) / expected
    np.testing.assert_allclose(found, w, rtol=0, atol=4 * GRID)
    assert np.abs(w - INITIAL).max() > 0.1


def test_the_noise_has_the_recorded_standard_deviation(tmp_path: Path) -> None:
    """Nobody moves: what is left is noise of std z·S / lot_size, Gaussian, with a fresh draw each round."""

    def wide() -> nn.Module:
        return nn.Linear(200, 150, bias=False)

    settings = Averaging(
        network=wide,
        folder=tmp_path,
        population=40,
        lot_size=10,
        clip_norm=0.5,
        rounds=1,
        budget=LOOSE,
        noise_multiplier=3.0,
    )
    with Averager(settings) as averager:
        steps = []
        for _ in range(3):
            before = averager.parameters
            averager.end(averager.begin())
            steps.append((averager.parameters.astype(np.float64) - before) * 10)
    noise, n = np.stack(steps), 30_000
    for row in noise:
        assert abs(row.mean()) < 5 * 1.5 / math.sqrt(n)
        assert abs(row.std() / 1.5 - 1) < 5 / math.sqrt(2 * n)
        assert abs(np.mean((row / row.std()) ** 4) - 3) < 5 * math.sqrt(24 / n)
    correlations = np.corrcoef(noise)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(n)


def test_absence_takes_a_vector_away_and_leaves_the_denominator(tmp_path: Path) -> None:
    """With the same noise, the results with and without a participant differ by its clipped change / expected."""
    app = update_app(network, moves_by(0.4))
    nodes = [101, 102, 103]
    full = average(MemoryGrid(app, nodes), averaging(tmp_path / "all"))

    def silent(node: int, reply: Message) -> Message | None:
        return None if node == 102 else reply

    dropped = average(MemoryGrid(app, nodes, tamper=silent), averaging(tmp_path / "dropped"))
    unseen = average(MemoryGrid(app, nodes[:1] + nodes[2:]), averaging(tmp_path / "unseen"))
    change = 0.4 * direction(102).astype(np.float64)
    clipped = change * min(1.0, 0.5 / np.linalg.norm(change))
    for without in (dropped, unseen):
        np.testing.assert_allclose(full - without, clipped / 4, rtol=0, atol=GRID)
    wrong = clipped / 4 + (1 / 4 - 1 / 2) * (without - INITIAL) * 4  # a mean over those who answered
    assert np.abs((full - dropped) - wrong).max() > 1e-3


def test_a_round_without_nodes_adds_noise_and_is_recorded(tmp_path: Path) -> None:
    found = average(MemoryGrid(update_app(network, moves_by(1.0)), []), averaging(tmp_path, patience=0.05))
    assert 0 < np.abs(found - INITIAL).max() < 1.0  # noise alone
    assert len(Ledger.load(tmp_path / "server" / "ledger.jsonl")) == 1


# -- nobody is believed ----------------------------------------------------------------------------------------------

LIES: dict[str, Callable[[], Any]] = {
    "huge": lambda: vector(np.full(SIZE, 1e30, dtype=np.float32)),
    "infinite": lambda: vector(np.full(SIZE, np.inf, dtype=np.float32)),
    "nan": lambda: vector(np.full(SIZE, np.nan, dtype=np.float32)),
    "longer": lambda: vector(np.ones(SIZE + 1, dtype=np.float32)),
    "shorter": lambda: vector(np.ones(SIZE - 1, dtype=np.float32)),
    "doubles": lambda: vector(np.ones(SIZE, dtype=np.float64)),
    "a header that lies": lambda: ArrayRecord(
        {
            "values": Array(
                dtype="float32",
                shape=(SIZE,),
                stype="numpy.ndarray",
                data=Array(np.ones(SIZE, dtype=np.float32)).data.replace(f"({SIZE},), }}  ".encode(), b"(9999999,), "),
            )
        }
    ),
    "no array": lambda: ConfigRecord({"values": 1.0}),
}


@pytest.mark.parametrize("lie", LIES)
def test_the_server_clips_again_and_no_lie_moves_it_further(lie: str, tmp_path: Path) -> None:
    honest = update_app(network, lambda model, context: None)
    still = average(MemoryGrid(honest, [101]), averaging(tmp_path / "still"))
    app = replying(lambda node: LIES[lie]())
    found = average(MemoryGrid(app, [101]), averaging(tmp_path / "lie"))
    moved = np.linalg.norm(found.astype(np.float64) - still)
    assert moved <= 0.5 / 4 + GRID
    assert (moved > 0.124) == (lie == "huge")


def test_a_participant_clips_what_it_sends_and_sends_nothing_else(tmp_path: Path) -> None:
    sent: list[RecordDict] = []

    def watch(node: int, reply: Message) -> Message:
        sent.append(reply.content)
        return reply

    average(MemoryGrid(update_app(network, moves_by(5.0)), [101], tamper=watch), averaging(tmp_path))
    assert list(sent[0]) == [CHANGE]
    values = sent[0][CHANGE]["values"].numpy()
    assert 0.499 < np.linalg.norm(values.astype(np.float64)) <= 0.5 * (1 + 1e-6)


def test_a_slot_adds_once_and_only_if_it_was_drawn(tmp_path: Path) -> None:
    with Averager(averaging(tmp_path, population=50, lot_size=10)) as averager:
        current = averager.begin()
        inside = next(iter(current.slots))
        outside = next(slot for slot in range(50) if slot not in current.slots)
        current.add(inside, INITIAL)
        for slot in (inside, outside, 50, -1):
            with pytest.raises(ValueError, match="was not drawn"):
                current.add(slot, INITIAL)
        averager.end(current)
        with pytest.raises(RuntimeError, match="already released"):
            averager.end(current)


def test_a_node_that_leaves_does_not_change_which_others_are_drawn(tmp_path: Path) -> None:
    """More nodes than the population: each is drawn by a coin of its own, and one fewer is one vector fewer."""
    asked: list[set[int]] = []
    for number, nodes in enumerate((range(1, 8), range(2, 8))):
        seen: set[int] = set()

        def watch(node: int, reply: Message, seen: set[int] = seen) -> Message:
            seen.add(node)
            return reply

        grid = MemoryGrid(update_app(network, moves_by(0.1)), nodes, tamper=watch)
        average(grid, averaging(tmp_path / str(number), rounds=1))  # lot_size is the population: everybody is drawn
        asked.append(seen)
    assert asked == [set(range(1, 8)), set(range(2, 8))]


def test_every_node_is_drawn_at_the_recorded_rate_however_many_there_are(tmp_path: Path) -> None:
    with Averager(averaging(tmp_path, population=20, lot_size=2, seed=None)) as averager:
        counts = np.bincount([slot for _ in range(600) for slot in averager.begin(100).slots], minlength=100)
    assert ((counts - 60) ** 2 / 54).sum() < 100 + 5 * math.sqrt(200)


def test_no_log_says_who_was_drawn_or_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = MemoryGrid(update_app(network, moves_by(0.1)), [987654321, 987654322], tamper=lambda node, reply: None)
    with caplog.at_level(logging.DEBUG, logger="tacit"):
        average(grid, averaging(tmp_path, rounds=2))
    assert not caplog.text


def test_a_reply_that_flower_cannot_take_apart_counts_as_zero(tmp_path: Path) -> None:
    class Breaking(MemoryGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = list(super().pull_messages(message_ids))
            if any(reply.metadata.src_node_id == 2 for reply in replies):
                raise KeyError("Nonsense")
            return replies

    whole, broken = (
        average(grid(update_app(network, moves_by(0.01)), nodes), averaging(tmp_path / str(number)))
        for number, (grid, nodes) in enumerate(((MemoryGrid, [1]), (Breaking, [1, 2])))
    )
    assert np.allclose(whole, broken, atol=GRID)


def test_a_lost_ledger_and_other_terms_are_refused(tmp_path: Path) -> None:
    settings = averaging(tmp_path, rounds=2)
    average(MemoryGrid(update_app(network, moves_by(0.1)), [1]), settings)
    with pytest.raises(ValueError, match="begun with another"):
        Averager(averaging(tmp_path, rounds=2, clip_norm=0.25))
    (settings.folder / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match="has 0 rounds, and 2 were charged"):
        Averager(settings)


# -- what it costs ---------------------------------------------------------------------------------------------------


def test_the_budget_ends_the_rounds_and_the_ledger_is_about_participants(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    budget = Budget(3.0, 1e-5)
    settings = averaging(
        tmp_path, population=100, lot_size=10, noise_multiplier=1.0, rounds=10_000, budget=budget, seed=None
    )
    with caplog.at_level(logging.WARNING, logger="tacit"):
        average(MemoryGrid(update_app(network, moves_by(0.1)), [1, 2]), settings)
    ledger = Ledger.load(tmp_path / "server" / "ledger.jsonl")
    assert ledger.header.unit == "participant" and ledger.header.secure_randomness
    ((step, count),) = ledger.entries
    assert step.sampling == Poisson(rate=0.1, unit="participant")
    assert step.noise_multiplier == pytest.approx(1.0)
    assert f"stopped after {count} of 10000 rounds" in caplog.text
    spent = account(ledger, delta=1e-5)
    assert spent.epsilon <= 3.0
    one_more = Ledger(ledger.header)
    for _ in range(count + 1):
        one_more.record(step)
    assert account(one_more, delta=1e-5).epsilon > 3.0


def test_without_a_noise_multiplier_all_rounds_fit_the_budget(tmp_path: Path) -> None:
    settings = averaging(
        tmp_path, population=100, lot_size=10, noise_multiplier=None, rounds=20, budget=Budget(4.0, 1e-5)
    )
    average(MemoryGrid(update_app(network, moves_by(0.1)), [1]), settings)
    with Averager(settings) as averager:
        assert averager.rounds == 20
        assert 3.9 < averager.guarantee().epsilon <= 4.0
        assert "seed" in str(averager.guarantee()).lower() or not averager.ledger.header.secure_randomness


def test_a_round_is_charged_before_anybody_is_asked(tmp_path: Path) -> None:
    charged: list[int] = []

    class Watching(MemoryGrid):
        def push_messages(self, messages: Any) -> Any:
            charged.append(len(Ledger.load(tmp_path / "server" / "ledger.jsonl")))
            return super().push_messages(messages)

    average(Watching(update_app(network, moves_by(0.1)), [1]), averaging(tmp_path, rounds=3))
    assert charged == [1, 2, 3]


def test_a_server_that_dies_goes_on_and_what_was_charged_stays_so(tmp_path: Path) -> None:
    app, settings = update_app(network, moves_by(0.1)), averaging(tmp_path, rounds=4)
    with pytest.raises(Killed):
        average(MemoryGrid(app, [1], kill_at=6), settings)  # in the third round
    with Averager(settings) as averager:
        stood, parameters = averager.rounds, averager.parameters
    assert stood == 2
    assert len(Ledger.load(tmp_path / "server" / "ledger.jsonl")) == 3
    seen: list[np.ndarray] = []

    class Watching(MemoryGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            seen.append(messages[0].content["tacit.parameters"]["values"].numpy())
            return super().push_messages(messages)

    average(Watching(app, [1]), settings)
    assert seen[0].tobytes() == parameters.tobytes()
    assert len(seen) == 2
    assert len(Ledger.load(tmp_path / "server" / "ledger.jsonl")) == 5  # four rounds, and one that was lost


def test_sampling_is_poisson_over_the_population(tmp_path: Path) -> None:
    settings = averaging(tmp_path, population=200, lot_size=20, seed=None)
    with Averager(settings) as averager:
        lots = [averager.begin().slots for _ in range(400)]
    sizes = np.array([len(lot) for lot in lots])
    assert abs(sizes.mean() - 20) < 5 * math.sqrt(18 / 400)
    assert abs(sizes.var() / 18 - 1) < 5 * math.sqrt(2 / 400)
    counts = np.bincount([slot for lot in lots for slot in lot], minlength=200)
    assert ((counts - 40) ** 2 / 36).sum() < 200 + 5 * math.sqrt(400)  # chi-square with 200 degrees of freedom


def test_a_budget_that_allows_nothing_asks_no_participant(tmp_path: Path) -> None:
    settings = averaging(tmp_path, budget=Budget(1e-4, 1e-6))
    grid = MemoryGrid(update_app(network, moves_by(0.1)), [1])
    assert average(grid, settings).tobytes() == INITIAL.tobytes()
    assert grid.numbered == 0
    with Averager(settings) as averager, pytest.raises(BudgetExceeded):
        averager.begin()


@pytest.mark.parametrize(
    ("name", "value"),
    [("population", 0), ("lot_size", 5), ("clip_norm", 0.0), ("rounds", True), ("patience", math.inf), ("least", -1)],
)
def test_settings_are_checked(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=name):
        averaging(tmp_path, **{name: value})
