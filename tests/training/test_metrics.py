"""Metrics: released from the same sample, bounded, noised, charged; and marked where they are not private."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import tacit
from tacit.gradients.precision import MARGIN
from tacit.training import JsonLines, TensorBoard

FAILURE = 1e-9


def one_step(run: Any, rows: Any, **names: Any) -> None:
    for x, y in run.lot():
        F.cross_entropy(run.model(x), y).backward()
        run.observe(**{name: rows(x, y) for name in (names or {"m": None})})
        run.optimizer.step()
        run.optimizer.zero_grad()


def test_a_metric_is_unbiased_with_the_declared_noise(make: Any) -> None:
    _, _, run = make(
        steps=400, lot_size=30, metrics={"m": tacit.Metric(bound=2.0, noise_multiplier=3.0)}, noise_multiplier=1.0
    )
    values = []
    for _ in range(400):
        one_step(run, lambda x, y: 1.5 * torch.ones(len(x)))
        values.append(run.metrics["m"])
    # The sum of 1.5 over a Poisson lot (60 records, rate 1/2), plus N(0, 6²), divided by the expected size.
    variance = (1.5**2 * 60 * 0.25 + 6.0**2) / 30**2
    mean = sum(values) / 400
    assert abs(mean - 1.5) < stats.norm.isf(FAILURE / 4) * math.sqrt(variance / 400)
    spread = sum((value - 1.5) ** 2 for value in values) / variance
    low, high = stats.chi2.ppf([FAILURE / 4, 1 - FAILURE / 4], 400)
    assert 0.98 * low < spread < 1.02 * high


def test_values_are_clipped_at_the_bound_and_the_divisor_is_public(make: Any, silence: Any) -> None:
    _, _, run = make(lot_size=60, metrics={"m": tacit.Metric(bound=1.0)})
    one_step(run, lambda x, y: 100 * torch.ones(len(x)))
    assert run.metrics["m"] == pytest.approx(1.0)
    one_step(run, lambda x, y: torch.full((len(x),), -7.0))
    assert run.metrics["m"] == pytest.approx(-1.0)
    one_step(run, lambda x, y: torch.where(y == 0, torch.nan, 0.5))
    assert run.metrics["m"] == pytest.approx(0.5 * 40 / 60)
    half = make(lot_size=30, metrics={"m": tacit.Metric(bound=1.0)})[2]
    seen = set()
    for _ in range(4):
        one_step(half, lambda x, y: torch.ones(len(x)))
        seen.add(round(half.metrics["m"] * 30, 6))
    assert all(value == int(value) for value in seen) and len(seen) > 1


def test_a_metric_is_charged(make: Any) -> None:
    metrics = {"m": tacit.Metric(bound=2.0), "n": tacit.Metric(bound=1.0, noise_multiplier=5.0)}
    _, _, run = make(metrics=metrics, noise_multiplier=2.0)
    one_step(run, lambda x, y: torch.ones(len(x)), m=1, n=1)
    queries = {query.group: query for query in run.ledger.entries[0][0].queries}
    assert (queries["metrics/m"].clip_norm, queries["metrics/m"].noise_std) == (2.0, 40.0)
    assert (queries["metrics/n"].clip_norm, queries["metrics/n"].noise_std) == (1.0, 5.0)
    wanted = (1 / 2.0**2 - 1 / 20.0**2 - 1 / 5.0**2) ** -0.5
    assert queries["gradients"].noise_std == pytest.approx(wanted * (1 + MARGIN))


def test_a_metric_observed_in_pieces_is_one_release(make: Any, silence: Any) -> None:
    _, _, run = make(lot_size=60, batch_size=7, metrics={"m": tacit.Metric(bound=1.0)})
    one_step(run, lambda x, y: (y == 1).float())
    assert run.metrics["m"] == pytest.approx(20 / 60)


def test_errors_of_observe(make: Any) -> None:
    model, optimizer, run = make(metrics={"m": tacit.Metric(bound=1.0)}, lot_size=60)
    with pytest.raises(RuntimeError, match="there is no batch to observe"):
        run.observe(m=torch.ones(3))
    for x, y in run.lot():
        F.cross_entropy(model(x), y).backward()
        with pytest.raises(ValueError, match=r"'accuracy' was not declared.*metrics: m"):
            run.observe(accuracy=torch.ones(len(x)))
        for wrong in (torch.ones(2), torch.tensor(1.0), torch.ones(len(x), 1)):
            with pytest.raises(ValueError, match=r"'m' has .*; give one number for each example of the batch"):
                run.observe(m=wrong)
        run.observe(m=torch.ones(len(x)))
        optimizer.step()
        with pytest.raises(RuntimeError, match="before optimizer"):
            run.observe(m=torch.ones(len(x)))


def test_no_error_says_how_many_records_were_drawn(make: Any) -> None:
    """The size of a lot is as private as who is in it."""
    model, optimizer, run = make(
        metrics={"m": tacit.Metric(bound=1.0)}, lot_size=47, batch_size=60, sampling="fixed-size"
    )
    messages = []
    for x, y in run.lot():
        for wrong in (torch.ones(47, 47), torch.ones(46), torch.tensor(1.0)):
            with pytest.raises(ValueError) as caught:
                run.observe(m=wrong)
            messages.append(str(caught.value))
        x, y = torch.from_numpy(x.numpy()), torch.from_numpy(y.numpy())  # out of the engine's sight
        F.cross_entropy(model(torch.cat([x, x])), torch.cat([y, y])).backward()
        with pytest.raises(ValueError) as caught:
            optimizer.step()
        messages.append(str(caught.value))
        break
    assert len(messages) == 4 and not any(number in text for text in messages for number in ("46", "47", "94"))


def test_a_metric_that_was_declared_must_be_observed(make: Any, noise: Any) -> None:
    """Released all the same it would be noise, and would look like a metric."""
    metrics = {"m": tacit.Metric(bound=1.0), "n": tacit.Metric(bound=1.0)}
    model, optimizer, run = make(metrics=metrics, lot_size=60, batch_size=30)
    before = model.weight.detach().clone()
    for number, (x, y) in enumerate(run.lot()):
        F.cross_entropy(model(x), y).backward()
        run.observe(m=torch.ones(len(x)))
        if number == 0:
            run.observe(n=torch.ones(len(x)))
            optimizer.step()
            continue
        with pytest.raises(RuntimeError, match=r"metric 'n' was declared but not observed .* run\.observe\(n="):
            optimizer.step()
        assert not noise.added and not run.metrics  # nothing was released
        run.observe(n=torch.ones(len(x)))  # and one can make up for it
        optimizer.step()
    assert set(run.metrics) == {"m", "n"} and not torch.equal(model.weight, before)


def test_fit_refuses_metrics_it_cannot_observe(data: Any) -> None:
    model = torch.nn.Linear(4, 3)
    with pytest.raises(ValueError, match="metrics has 'accuracy'; fit can observe 'loss' only"):
        tacit.fit(model, data, metrics={"accuracy": tacit.Metric(bound=1.0)}, lot_size=12, steps=1)


@pytest.mark.parametrize("bad", [{"bound": 0.0}, {"bound": math.inf}, {"bound": 1.0, "noise_multiplier": -1.0}])
def test_a_metric_refuses_nonsense(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be a finite number above 0"):
        tacit.Metric(**bad)


def test_a_metric_that_leaves_no_room_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="the noise of 'metrics/m' allows no more than 1; give them more"):
        make(metrics={"m": tacit.Metric(bound=1.0, noise_multiplier=1.0)}, noise_multiplier=2.0)


def test_explicit_noise_needs_the_noise_of_metrics(make: Any) -> None:
    from tacit.mechanisms import Explicit

    noise = Explicit({"gradients": 2.0})
    with pytest.raises(ValueError, match="needs a noise multiplier of its own"):
        make(metrics={"m": tacit.Metric(bound=1.0)}, noise=noise)
    _, _, run = make(metrics={"m": tacit.Metric(bound=1.0, noise_multiplier=3.0)}, noise=noise)
    assert run.noise_multiplier == pytest.approx(((1 + MARGIN) ** 2 / 4 + 1 / 9) ** -0.5)


class Writer:
    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))


def test_loggers_say_what_is_private_and_what_is_not(tmp_path: Path) -> None:
    writer, lines = Writer(), JsonLines(tmp_path / "logs" / "run.jsonl")
    for logger in (TensorBoard(writer), lines):
        logger.log(3, {"loss": 0.5}, private=True)
        logger.log(3, {"test loss": 0.7}, private=False)
    assert writer.scalars == [("private/loss", 0.5, 3), ("not_private/test loss", 0.7, 3)]
    read = [json.loads(line) for line in (tmp_path / "logs" / "run.jsonl").read_text().splitlines()]
    assert read == [{"step": 3, "private": True, "loss": 0.5}, {"step": 3, "private": False, "test loss": 0.7}]
