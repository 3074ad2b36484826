"""Train with the Lightning `Trainer`, privately. Needs the extra ``lightning``.

    from tacit.integrations.lightning import PrivateStrategy

    private = PrivateStrategy(budget=tacit.Budget(3.0, 1e-5), clipping=1.0)
    trainer = lightning.Trainer(max_epochs=3, strategy=private)
    trainer.fit(module, loader)
    print(private.run.guarantee())

The `LightningModule` stays. A batch of the Trainer is a lot; `docs/frameworks.md` says what each setting becomes. With
Fabric no adapter is needed: `make_private` takes its model and optimizer.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tacit.integrations import not_installed

if importlib.util.find_spec("lightning") is None:
    raise not_installed("lightning", "lightning")

import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from tacit.integrations.trainer_lots import LotNumbers
from tacit.integrations.trainer_settings import records
from tacit.ledger import BudgetExceeded
from tacit.training import Parallel, PrivateRun, make_private
from tacit.training.loaders import check_sampler, no_records_by_number
from tacit.training.loggers import labelled
from tacit.training.odometer import Odometer

log = logging.getLogger("tacit")


class Private:
    """A mixin that makes a strategy of Lightning private; `PrivateStrategy` and `PrivateDDPStrategy` have it.

    ``privacy`` are arguments of `tacit.make_private`. The Trainer's ``max_epochs`` or ``max_steps`` say how long; the
    lot is the loader's batch unless ``lot_size`` is given; ``batch_size`` bounds memory.

    Formal guarantee: that of the run (`tacit.training.PrivateRun`). What `training_step` logs is computed from the
    records without noise; its names get the prefix ``not_private/``.
    """

    run: PrivateRun
    """The private run of the last call of ``fit``."""

    def __init__(self, *, accelerator_settings: dict[str, Any] | None = None, **privacy: Any) -> None:
        for name, own in (("epochs", "max_epochs"), ("steps", "max_steps")):
            if name in privacy:
                raise ValueError(f"privacy has {name!r}, which the Trainer decides; write Trainer({own}=...).")
        if callable(privacy.get("lot_size")):
            raise ValueError("lot_size is a function; the Trainer counts epochs in lots of one size: give a number.")
        super().__init__(**(accelerator_settings or {}))
        self.privacy = privacy
        self._odometer = Odometer()
        self._lots: DataLoader[Any] | None = None
        self._lot: Iterator[Any] | None = None
        self._batch: Any = None
        self._saved: str | None = None
        self._taken = 0

    # -- the loop ----------------------------------------------------------------------------------------------------

    def process_dataloader(self, dataloader: Any) -> Any:
        """Return, for the training data, a loader with one item for each lot of an epoch."""
        trainer = self.lightning_module.trainer  # type: ignore[attr-defined]
        dataloader = super().process_dataloader(dataloader)  # type: ignore[misc]
        if trainer.validating or trainer.testing or trainer.predicting or trainer.sanity_checking:
            return dataloader
        if self._lots is not None:
            return self._lots
        _check_trainer(trainer, self.lightning_module)  # type: ignore[attr-defined]
        if not isinstance(dataloader, DataLoader) or not hasattr(dataloader.dataset, "__len__"):
            raise no_records_by_number(dataloader.dataset if isinstance(dataloader, DataLoader) else dataloader)
        check_sampler(dataloader.sampler)
        self._source = dataloader
        size = self.privacy.get("lot_size", dataloader.batch_size)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"lot_size is {size!r}; it must be a whole number, at least 1.")
        self._lot_size = size * (1 if "lot_size" in self.privacy else trainer.world_size)
        lots = LotNumbers(
            math.ceil(records(dataloader.dataset, self.privacy) / self._lot_size),
            self._begin_lot,
            self._skipped,
            skipped=True,
        )
        self._lots = DataLoader(lots, batch_sampler=lots, collate_fn=_one)
        return self._lots

    def on_train_start(self) -> None:
        """Make the run, when model and optimizer are as the Trainer trains them."""
        super().on_train_start()  # type: ignore[misc]
        module = self.lightning_module  # type: ignore[attr-defined]
        steps = module.trainer.estimated_stepping_batches
        if not math.isfinite(steps):
            raise ValueError(
                "the Trainer has neither max_epochs nor max_steps; the noise depends on the number of steps: give one "
                "of the two."
            )
        given: dict[str, Any] = {
            "num_workers": self._source.num_workers,
            "collate_fn": self._source.collate_fn,
            "ledger": Path(module.trainer.default_root_dir) / "ledger.jsonl",
            **self.privacy,
            "lot_size": self._lot_size,
            "steps": int(steps),
        }
        if module.trainer.world_size > 1:
            given.setdefault("parallel", Parallel())
        optimizer = self.optimizers[0]  # type: ignore[attr-defined]
        self.run = make_private(self.model, optimizer, self._source.dataset, **given)  # type: ignore[attr-defined]
        if self._saved is not None:
            self.run.load(f"{self._saved}.tacit")
        self._taken = self.run.step

    def _begin_lot(self) -> bool:
        """Record and draw the next lot and read its first batch; false where the steps or the budget are used up."""
        if self.run.step >= self.run.steps:
            return False
        lot = self.run.lot()
        try:
            self._batch = next(lot)
        except BudgetExceeded as error:
            log.warning("stopped after %d of %d steps: %s", self.run.step, self.run.steps, error)
            self.lightning_module.trainer.should_stop = True  # type: ignore[attr-defined]
            return False
        self._lot = lot
        return True

    def _skipped(self) -> int:
        taken, self._taken = self._taken, 0
        return taken

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **others: Any) -> Any:
        """Run the closure (training step and backward pass) for every batch of the lot; the last one releases it."""
        lot, self._lot = self._lot, None
        assert lot is not None
        while True:
            result = super().optimizer_step(optimizer, closure, model, **others)  # type: ignore[misc]
            if self.run.lot_finished:
                break
            self._batch = next(lot)
        next(lot, None)
        self._batch = None
        self._log()
        return result

    def training_step(self, lot: Any, *others: Any, **named: Any) -> Any:
        """Run the module's training step on the batch at hand, and name what it logs as not private.

        The module is called itself, also where DistributedDataParallel is around it, which has nothing to do here.
        """
        module = self.lightning_module  # type: ignore[attr-defined]
        batch = self.batch_to_device(self._batch, dataloader_idx=0)  # type: ignore[attr-defined]
        plain = module.log

        def log_labelled(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            number = value.detach().as_subclass(Tensor) if isinstance(value, Tensor) else value
            plain(labelled(name, private=False), number, *args, **kwargs)

        module.log = log_labelled
        try:
            with self.precision_plugin.train_step_context():  # type: ignore[attr-defined]
                return module.training_step(batch, *others, **named)
        finally:
            del module.log

    def _log(self) -> None:
        """Give the loggers the private numbers: ε, and the metrics of `make_private`."""
        trainer, private = self.lightning_module.trainer, self.run.ledger.header.secure_randomness  # type: ignore[attr-defined]
        last = self.run.step == self.run.steps
        if not trainer.loggers or (self.run.step % trainer.log_every_n_steps and not last):
            return
        numbers = dict(self.run.metrics)
        if last or self._odometer.due:
            numbers["epsilon"] = self._odometer.read(self.run)
        named = {labelled(name, private=private): value for name, value in numbers.items()}
        for logger in trainer.loggers:
            logger.log_metrics(named, step=self.run.step)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write the run beside the checkpoint, and before it: a checkpoint that is there has its run."""
        if hasattr(self, "run"):
            self.run.save(f"{filepath}.tacit")
        super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint; the run beside it is loaded when training begins."""
        self._saved = str(checkpoint_path)
        found: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)  # type: ignore[misc]
        return found

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint and the run beside it."""
        super().remove_checkpoint(filepath)  # type: ignore[misc]
        if self.is_global_zero:  # type: ignore[attr-defined]
            shutil.rmtree(f"{filepath}.tacit", ignore_errors=True)

    def teardown(self) -> None:
        """Leave model and optimizer as ordinary ones; a lot that was left half-way stays charged."""
        if self._lot is not None:
            self._lot.close()  # type: ignore[attr-defined]
        self._lot, self._batch, self._lots, self._saved = None, None, None, None
        if hasattr(self, "run"):
            self.run.close()
            self.run.ledger.close()
        super().teardown()  # type: ignore[misc]


class PrivateStrategy(Private, SingleDeviceStrategy):  # type: ignore[misc]
    """One device: ``Trainer(strategy=PrivateStrategy(budget=..., clipping=1.0))``; see `Private`."""

    def __init__(self, device: str = "cpu", **privacy: Any) -> None:
        super().__init__(accelerator_settings={"device": torch.device(device)}, **privacy)


class PrivateDDPStrategy(Private, DDPStrategy):  # type: ignore[misc]
    """Several processes train one model: ``Trainer(devices=2, strategy=PrivateDDPStrategy(...))``; see `Private`."""


def _one(numbers: list[int]) -> Tensor:
    """Return a placeholder batch for Lightning; `Private.training_step` has the real ones."""
    return torch.zeros(1)


def _check_trainer(trainer: Any, module: Any) -> None:
    """Refuse settings of the Trainer that have no effect, or depend on the records."""
    if not module.automatic_optimization:
        raise ValueError(
            "the module has automatic_optimization=False; write a loop with Fabric and tacit.make_private instead "
            "(docs/frameworks.md)."
        )
    if trainer.accumulate_grad_batches != 1:
        raise ValueError(
            f"accumulate_grad_batches is {trainer.accumulate_grad_batches}; leave it out: lot_size= is how many "
            "records a step has, and batch_size= how many of them are in memory at once."
        )
    if trainer.gradient_clip_val:
        raise ValueError(
            f"gradient_clip_val is {trainer.gradient_clip_val}; leave it out: each record's gradient is clipped, to "
            "clipping= of the strategy."
        )
    if trainer.overfit_batches:
        raise ValueError(
            f"overfit_batches is {trainer.overfit_batches}; lots are drawn from all records: leave it out."
        )
    if str(trainer.precision) == "16-mixed":
        raise ValueError(
            "precision is '16-mixed': its loss scaling skips a step when a record overflows, which tells something of "
            "that record; use 'bf16-mixed'."
        )
