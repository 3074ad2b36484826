"""`fit`: private training in one call, for people without a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.accounting.guarantee import rounded_up
from tacit.training.loggers import Logger
from tacit.training.odometer import Odometer
from tacit.training.private import make_private
from tacit.training.run import PrivateRun

Loss = Callable[[Any, Any], Tensor]


def fit(
    model: nn.Module,
    dataset: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Loss = F.cross_entropy,
    loggers: Sequence[Logger] = (),
    progress: bool = False,
    log_every: int = 10,
    **settings: Any,
) -> PrivateRun:
    """Train ``model`` on ``dataset`` (pairs of input and target) and return the finished run.

    ``settings`` are those of `tacit.make_private`. ``loggers`` and the progress bar get the declared metrics, which
    are private, and ε spent. Accounting takes at most a twentieth of the time: if steps are quick, only some of the
    lines have ε, the last one always. Declare the loss to see it: ``metrics={"loss": Metric(bound=5.0)}``.
    """
    others = sorted(set(settings.get("metrics") or {}) - {"loss"})
    if others:
        raise ValueError(f"metrics has {others[0]!r}; fit can observe 'loss' only: write the loop for others.")
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    run = make_private(model, optimizer, dataset, **settings)
    if run.team.rank:
        loggers, progress = (), False  # the first of several processes tells
    watched, odometer = "loss" in (settings.get("metrics") or {}), Odometer()
    try:
        with _bar(run, progress) as bar:
            for x, y in run.batches():
                output = model(x)
                value = loss(output, y)
                torch.autograd.backward(value)
                if watched:
                    run.observe(loss=_each(loss, output, y))
                step = run.step
                optimizer.step()
                optimizer.zero_grad()
                if run.step != step and run.step % log_every == 0 and run.step < run.settings.steps:
                    _tell(run, bar, loggers, odometer.read(run) if odometer.due else None)
            if run.step > odometer.step:
                _tell(run, bar, loggers, odometer.read(run))
    finally:
        run.close()
    return run


def _tell(run: PrivateRun, bar: _Bar, loggers: Sequence[Logger], epsilon: float | None) -> None:
    bar.show(run, epsilon)
    values = run.metrics if epsilon is None else {**run.metrics, "epsilon": epsilon}
    for logger in loggers:
        logger.log(run.step, values, private=run.ledger.header.secure_randomness)


def _each(loss: Loss, output: Any, y: Any) -> Tensor:
    """Return each example's loss; run one at a time a function that returns only one number."""
    with torch.no_grad():
        plain: Tensor = output.detach().as_subclass(Tensor)
        if loss in (F.cross_entropy, F.nll_loss):
            values = (F.cross_entropy if loss is F.cross_entropy else F.nll_loss)(plain, y, reduction="none")
            return values.flatten(1).mean(dim=1) if values.ndim > 1 else values
        if not len(plain):
            return plain.new_zeros(0)
        return torch.stack([loss(plain[i : i + 1], y[i : i + 1]).reshape(()) for i in range(len(plain))])


class _Bar:
    """Show a progress bar with ε spent, the metrics and the time left, unless ``progress`` is off."""

    def __init__(self, progress: Any | None, task: Any) -> None:
        self._progress, self._task, self._spent = progress, task, ""

    def __enter__(self) -> _Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, run: PrivateRun, epsilon: float | None) -> None:
        if self._progress is None:
            return
        if epsilon is not None:
            most = f" of {run.budget.epsilon:g}" if run.budget else ""
            self._spent = f"ε {rounded_up(epsilon)}{most} at step {run.step}"
        numbers = "  ".join(f"{name} {value:.3f}" for name, value in run.metrics.items())
        self._progress.update(self._task, completed=run.step, description=f"{self._spent}  {numbers}")


def _bar(run: PrivateRun, wanted: bool) -> _Bar:
    if not wanted:
        return _Bar(None, None)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return _Bar(progress, progress.add_task("starting", total=run.settings.steps))
