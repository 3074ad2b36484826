"""Loggers for `tacit.fit` and for your own loop. Need the extra ``loggers`` (TensorBoard, Weights & Biases, MLflow).

A logger is anything with ``log(step, values, private)`` (`tacit.training.Logger`). Every name that it writes begins
with ``private/`` or ``not_private/``: the ledger has paid for the first, and only those may leave with the model.

    tacit.fit(model, people, loggers=[WeightsAndBiases(wandb.init(project="people"))], ...)

    for x, y in run.batches():
        ...
        if run.lot_finished:
            logger.log(run.step, run.metrics, private=True)

For TensorBoard there is `tacit.training.TensorBoard`, which takes a ``SummaryWriter``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.training.loggers import labelled


class WeightsAndBiases:
    """Writes to a run of Weights & Biases: ``WeightsAndBiases(wandb.init(project="people"))``."""

    def __init__(self, run: Any) -> None:
        if not callable(getattr(run, "log", None)):
            raise ValueError(f"run is of type {type(run).__name__}; give what wandb.init(...) returns.")
        self._run = run

    def log(self, step: int, values: Mapping[str, float], *, private: bool) -> None:
        self._run.log({labelled(name, private=private): value for name, value in values.items()}, step=step)


class MLflow:
    """Writes to a run of MLflow: ``MLflow(mlflow.MlflowClient(), mlflow.active_run().info.run_id)``."""

    def __init__(self, client: Any, run_id: str) -> None:
        if not callable(getattr(client, "log_metric", None)):
            raise ValueError(f"client is of type {type(client).__name__}; give mlflow.MlflowClient().")
        if not isinstance(run_id, str):
            raise ValueError(f"run_id is {run_id!r}; give mlflow.active_run().info.run_id.")
        self._client, self._run_id = client, run_id

    def log(self, step: int, values: Mapping[str, float], *, private: bool) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run_id, labelled(name, private=private), float(value), step=step)
