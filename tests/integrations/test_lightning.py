"""The Lightning Trainer with a guarantee: epochs, schedules, validation, logs, checkpoints, refusals."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import data

import tacit
from tacit.ledger import Ledger
from tacit.sampling import PoissonSampler

lightning = pytest.importorskip("lightning", reason="Lightning is not installed (extra 'lightning')")

from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from tacit.integrations.lightning import PrivateStrategy  # noqa: E402

Y = torch.arange(60) % 3
X = 2 * torch.eye(4)[Y] + 0.5 * torch.randn(60, 4, generator=torch.Generator().manual_seed(7))


class Module(lightning.LightningModule):  # type: ignore[misc]
    """A linear classifier as people write it, with a schedule for each step."""

    def __init__(self, **switches: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)
        self.sizes: list[int] = []
        for name, value in switches.items():
            setattr(self, name, value)

    def training_step(self, batch: Any, number: int) -> Any:
        x, y = batch
        self.sizes.append(len(x))
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        x, y = batch
        self.log("val_accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        total = min(1000, self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (total + 1))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def loader(**others: Any) -> Any:
    return data.DataLoader(data.TensorDataset(X, Y), **{"batch_size": 12, "shuffle": True, **others})


def fit(directory: Path, module: Any = None, source: Any = None, resume: Any = None, **others: Any) -> Any:
    privacy = {"noise_multiplier": 1.0, "clipping": 1.0, "batch_size": 5, **others.pop("privacy", {})}
    trainer = lightning.Trainer(
        strategy=PrivateStrategy(**privacy),
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 2, "log_every_n_steps": 1, "logger": CSVLogger(directory), **others},
    )
    made = Module() if module is None else module
    trainer.fit(made, loader() if source is None else source, loader(shuffle=False), ckpt_path=resume)
    return trainer, made, trainer.strategy.run


def test_a_batch_of_the_trainer_is_a_lot(tmp_path: Path) -> None:
    trainer, module, run = fit(tmp_path)
    assert trainer.global_step == run.step == 10 == len(Ledger.load(tmp_path / "ledger.jsonl"))
    assert trainer.current_epoch == 2 and run.abandoned == 0 and run.settings.lot_size(0) == 12
    assert max(module.sizes) <= 7 and len(module.sizes) > 10  # batches of at most 5, and those of the trial
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * (1 - 10 / 11))


def test_values_logged_by_the_training_step_are_named_not_private(tmp_path: Path) -> None:
    trainer, _, run = fit(tmp_path, privacy={"budget": tacit.Budget(5.0, 1e-5)})
    assert "not_private/train_loss_epoch" in trainer.callback_metrics and "val_accuracy" in trainer.callback_metrics
    text = next(tmp_path.glob("lightning_logs/**/metrics.csv")).read_text()
    assert "private/epsilon" in text and "not_private/train_loss" in text and ",train_loss" not in text
    assert run.guarantee().epsilon <= 5.0


def test_the_budget_ends_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tacit"):
        trainer, _, run = fit(tmp_path, privacy={"budget": tacit.Budget(4.0, 1e-5)})
    assert 0 < trainer.global_step == run.step == len(run.ledger) < 10 and run.guarantee().epsilon <= 4.0
    assert f"stopped after {run.step} of 10 steps" in caplog.text


def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody in each lot and no noise: stopping at a checkpoint in the middle of an epoch changes nothing."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from tacit.mechanisms import lattice

    monkeypatch.setattr(lattice, "add_gaussian_", lambda sums, source: list(sums))
    monkeypatch.setattr(PoissonSampler, "_choose", lambda sampler, rate: np.arange(sampler.records))
    _, whole, _ = fit(tmp_path / "whole")
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=3, filename="{step}", save_top_k=-1)

    class Stop(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step >= 7

    fit(tmp_path / "parts", callbacks=[saving, Stop()])
    trainer, resumed, run = fit(tmp_path / "parts", resume=str(tmp_path / "saved" / "step=6.ckpt"))
    assert trainer.global_step == run.step == 10
    assert len(run.ledger) == 7 + 4 or len(run.ledger) == 10 + 4  # what was charged after the checkpoint stays
    torch.testing.assert_close(resumed.net.weight, whole.net.weight, atol=1e-6, rtol=1e-4)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "accumulation": ({"accumulate_grad_batches": 2}, "accumulate_grad_batches is 2; leave it out: lot_size="),
    "clipping": ({"gradient_clip_val": 1.0}, "gradient_clip_val is 1.0; leave it out"),
    "overfitting": ({"overfit_batches": 2}, "lots are drawn from all records"),
    "no end": ({"max_epochs": -1}, "neither max_epochs nor max_steps"),
    "epochs": ({"privacy": {"epochs": 2}}, r"write Trainer\(max_epochs="),
    "manual": ({"module": "manual"}, "automatic_optimization=False; write a loop with Fabric"),
    "weights": ({"source": "weighted"}, "weight the loss with public class weights"),
    "stream": ({"source": "stream"}, "make it map-style: dataset = list"),
}


class Stream(data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_settings_without_a_private_meaning_are_refused_before_any_charge(name: str, tmp_path: Path) -> None:
    settings, why = REFUSED[name]
    chosen = dict(settings)
    if chosen.get("module") == "manual":
        chosen["module"] = Module(automatic_optimization=False)
    if chosen.get("source") == "weighted":
        chosen["source"] = loader(shuffle=False, sampler=data.WeightedRandomSampler([1.0] * 60, 60))
    if chosen.get("source") == "stream":
        chosen["source"] = data.DataLoader(Stream(), batch_size=12)
    with pytest.raises(ValueError, match=why):
        fit(tmp_path, **chosen)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_model_with_dropout_is_tried_and_a_mixing_loss_refused(tmp_path: Path) -> None:
    class Mixing(Module):
        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            return (F.cross_entropy(self.net(F.dropout(x, 0.5)), y, reduction="none") / len(x)).sum()

    with pytest.raises(ValueError, match="run together and in two parts"):
        fit(tmp_path, Mixing())
