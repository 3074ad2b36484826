"""Numbers of a run in TensorBoard, Weights & Biases and MLflow, without a network; every name says what is private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.integrations.loggers import MLflow, WeightsAndBiases
from tacit.training import TensorBoard

NAMES = {"private/loss", "private/epsilon"}


def fit(logger: Any) -> Any:
    """Train four steps with a released loss; log one number that is not private, too."""
    people = TensorDataset(torch.randn(60, 4), torch.arange(60) % 3)
    run = tacit.fit(
        nn.Linear(4, 3),
        people,
        lot_size=12,
        steps=4,
        clipping=1.0,
        noise_multiplier=1.0,
        metrics={"loss": tacit.Metric(bound=3.0)},
        loggers=[logger],
        log_every=2,
    )
    logger.log(4, {"accuracy": 0.5}, private=False)
    return run


def tensorboard_scalars(directory: Path) -> dict[str, list[int]]:
    """Return the steps of every scalar in the event files below a directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[int]] = {}
    for file in directory.rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        found |= {name: [event.step for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    return found


def test_tensorboard_gets_every_number_under_its_name(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed (extra 'loggers')")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        fit(TensorBoard(writer))
    found = tensorboard_scalars(tmp_path)
    assert found.keys() == NAMES | {"not_private/accuracy"} and found["private/loss"] == [2, 4]


def test_weights_and_biases_gets_every_number_under_its_name(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed (extra 'loggers')")
    with wandb.init(mode="offline", dir=str(tmp_path), project="people", settings={"silent": True}) as run:
        fit(WeightsAndBiases(run))
        run.log({}, step=5)  # numbers of a step are written when the next one begins
        summary = dict(run.summary)
    assert NAMES | {"not_private/accuracy"} <= summary.keys() and "loss" not in summary


def test_mlflow_gets_every_number_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (extra 'loggers')")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "runs").as_uri())
    number = client.create_experiment("people")
    identity = client.create_run(number).info.run_id
    fit(MLflow(client, identity))
    assert client.get_run(identity).data.metrics.keys() == NAMES | {"not_private/accuracy"}
    assert [each.step for each in client.get_metric_history(identity, "private/loss")] == [2, 4]


def test_the_trainer_of_transformers_reports_to_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra 'hf')")
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed (extra 'loggers')")
    from integrations.tiny import task
    from tacit.integrations.transformers import PrivateTrainer

    model, people, words = task("classification")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    args = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, logging_steps=1, report_to=["tensorboard"], use_cpu=True, disable_tqdm=True
    )
    privacy = {"noise_multiplier": 1.0, "metrics": {"loss": tacit.Metric(bound=3.0)}}
    PrivateTrainer(model=model, args=args, train_dataset=people, processing_class=words, privacy=privacy).train()
    found = tensorboard_scalars(tmp_path)
    assert {"train/private/epsilon", "train/private/loss"} <= found.keys()
    assert not {"train/loss", "train/grad_norm", "train/train_loss"} & found.keys()


def test_the_wrong_object_is_refused_with_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"give what wandb\.init\(\.\.\.\) returns"):
        WeightsAndBiases("people")
    with pytest.raises(ValueError, match=r"give mlflow\.MlflowClient\(\)"):
        MLflow("people", "1")
