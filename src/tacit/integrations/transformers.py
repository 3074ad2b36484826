"""Train with the Hugging Face `Trainer`, privately. Needs the extra ``hf`` (transformers, accelerate).

    from tacit.integrations.transformers import PrivateTrainer

    trainer = PrivateTrainer(
        model=model, args=args, train_dataset=people, processing_class=tokenizer,
        privacy={"budget": tacit.Budget(3.0, 1e-5)},
    )
    trainer.train()
    print(trainer.run.guarantee())

The rest of the script stays. A step of the Trainer is a lot; `docs/frameworks.md` says what each setting becomes.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tacit.integrations import not_installed

if importlib.util.find_spec("transformers") is None:
    raise not_installed("transformers", "hf")

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import TrainOutput

from tacit.integrations import trainer_settings as settings
from tacit.integrations.example_losses import SmoothedLoss, check_known, example_losses
from tacit.integrations.trainer_lots import RUN, LotNumbers, checkpoint_of, no_batch
from tacit.ledger import BudgetExceeded
from tacit.training import PrivateRun, make_private
from tacit.training.loaders import check_sampler
from tacit.training.loggers import labelled
from tacit.training.odometer import Odometer

log = logging.getLogger("tacit")

_PUBLIC = ("learning_rate", "epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second")
"""Numbers of the Trainer's logs that do not come from the records."""


class Private:
    """A mixin that makes a `Trainer` private: ``class PrivateMine(Private, MyTrainer): ...``.

    ``privacy`` holds arguments of `tacit.make_private`. From the Trainer's own arguments come ``num_train_epochs``
    or ``max_steps``; the lot is its total batch (``per_device_train_batch_size`` × ``gradient_accumulation_steps`` ×
    processes) unless ``lot_size`` is given; ``per_device_train_batch_size`` bounds memory; ``max_grad_norm`` is the
    clip norm of each record unless ``clipping`` is given; the ledger is ``output_dir/ledger.jsonl``.

    Formal guarantee: that of the run (`tacit.training.PrivateRun`). Every number that this class logs or stores is
    released by the run or does not come from the training records: the Trainer's own training loss, gradient norm and
    counts of tokens and operations, which would, are left out. Evaluation sets are not covered.
    """

    args: Any
    eval_dataset: Any
    train_dataset: Any
    accelerator: Any
    optimizer: Any
    run: PrivateRun
    """The private run of the last call of `train`: ``trainer.run.guarantee()``, ``trainer.run.statement()``."""

    def __init__(
        self, model: Any = None, args: Any = None, *others: Any, privacy: Mapping[str, Any], **named: Any
    ) -> None:
        settings.check_privacy(privacy)
        args = copy.copy(transformers.TrainingArguments() if args is None else args)
        settings.check_arguments(args, others[0] if others else named.get("data_collator"))
        self.privacy = dict(privacy)
        self._lot_size = settings.lot_size(args, privacy)
        args.gradient_accumulation_steps = 1  # a lot is one step of the Trainer, in as many batches as it needs
        args.ignore_data_skip = False  # lots that a checkpoint holds are counted by the Trainer, and not drawn again
        args.ddp_find_unused_parameters = False  # which has a part of its own in the backward pass
        super().__init__(model, args, *others, **named)  # type: ignore[call-arg]
        self._odometer = Odometer()
        self._losses: list[float] = []
        self._logged = 0  # how many of them are in the logs
        self._lot: Iterator[Any] | None = None
        self._batch: Any = None
        self._resumed: str | None = None
        self._taken = 0  # steps that a checkpoint holds, until the loader has skipped them
        self._evaluating = False
        self._told: set[str] = set()
        if settings.wants_loss(privacy) and type(self).example_losses is Private.example_losses:
            check_known(self._inner())
        if getattr(self, "label_smoother", None) is not None:
            self.label_smoother = SmoothedLoss(args.label_smoothing_factor)
        self.add_callback(_Lots(self))  # type: ignore[attr-defined]

    def _inner(self) -> Any:
        """The model without wrappers of Accelerate and PEFT."""
        model = self.accelerator.unwrap_model(self.model)  # type: ignore[attr-defined]
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    # -- what the Trainer asks for -----------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, **others: Any) -> TrainOutput:
        """Train; ``resume_from_checkpoint=True`` goes on from the last checkpoint that was written completely."""
        if trial is not None:
            settings.refuse_search()
        self._resumed = checkpoint_of(resume_from_checkpoint, self.args.output_dir)
        try:
            output = super().train(self._resumed, **others)  # type: ignore[misc]
        finally:
            self._end()
        metrics = {name: value for name, value in output.metrics.items() if name in _PUBLIC}
        metrics |= self._private_numbers(final=True)
        return TrainOutput(output.global_step, metrics.get(self._label("loss"), math.nan), metrics)

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Refuse: every trial looks at the records, and the best is chosen by looking at all of them."""
        settings.refuse_search()

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader with one item for each lot of an epoch; the lots are drawn by the run."""
        loader = super().get_train_dataloader()  # type: ignore[misc]
        self._records = settings.records(loader.dataset, self.privacy)
        if loader.batch_sampler is not None:
            check_sampler(loader.sampler)
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        lots = LotNumbers(math.ceil(self._records / self._lot_size), self.begin_lot, self._skipped)
        return DataLoader(lots, batch_sampler=lots, collate_fn=no_batch)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Return the number of records."""
        if isinstance(dataloader.dataset, LotNumbers):
            return self._records
        return super().num_examples(dataloader)  # type: ignore[misc, no-any-return]

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the expected number of records of a step."""
        return self._lot_size

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the number of operations tells how many records, and how long ones, a lot has."""
        return 0

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run the batches of a lot; the Trainer's own ``optimizer.step()`` then completes it.

        Returns zero in place of the loss, which is not private; `log` has the released one.
        """
        model.train()
        assert self._lot is not None
        batch, self._batch = self._batch, None
        while True:
            self._backward(model, self._prepare_inputs(batch))  # type: ignore[attr-defined]
            if self.run.last_batch:
                return torch.zeros((), device=self.args.device)
            self.optimizer.step()
            self.optimizer.zero_grad()
            batch = next(self._lot)

    def _backward(self, model: nn.Module, batch: Any) -> None:
        watched = settings.wants_loss(self.privacy)
        with self.compute_loss_context_manager():  # type: ignore[attr-defined]
            found = self.compute_loss(model, dict(batch), return_outputs=watched)  # type: ignore[attr-defined]
        self.accelerator.backward(found[0] if watched else found)
        if watched:
            self.run.observe(loss=self.example_losses(found[1], batch))

    def example_losses(self, outputs: Any, inputs: Mapping[str, Any]) -> Tensor:
        """Return each example's own loss, for ``privacy={"metrics": {"loss": tacit.Metric(bound=5.0)}}``."""
        return example_losses(self._inner(), outputs, inputs)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """Return None: before ``optimizer.step()`` there is no gradient to report."""

    _clip_grad_norm = _get_grad_norm

    # -- what is logged ----------------------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as ever; the numbers are those of the evaluation set, which no guarantee covers."""
        chosen = args[0] if args else kwargs.get("eval_dataset")
        if (self.eval_dataset if chosen is None else chosen) is self.train_dataset:
            log.warning("the evaluation set is the training set: its numbers are not private; use others")
        self._evaluating = True
        try:
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._evaluating = False

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log private and public numbers, past the `log` of a Trainer behind this mixin: TRL's adds exact ones."""
        if self._evaluating or not hasattr(self, "run"):
            super().log(logs, *args, **kwargs)  # type: ignore[misc]
            return
        others = set(logs) - {*_PUBLIC, "loss", "train_loss", "total_flos", "grad_norm"} - self._told
        if others:
            self._told |= others
            log.warning(
                "%s left out of the logs: it is computed from the records without noise. Declare it as a metric to "
                "release it (metrics= of make_private).",
                ", ".join(sorted(others)),
            )
        final = "train_runtime" in logs
        kept = {name: value for name, value in logs.items() if name in _PUBLIC} | self._private_numbers(final=final)
        transformers.Trainer.log(self, kept, *args, **kwargs)
        if not final:
            self._logged = len(self._losses)

    def _private_numbers(self, *, final: bool) -> dict[str, float]:
        numbers = {self._label("noise_multiplier"): self.run.noise_multiplier}
        if final or self._odometer.due:
            numbers[self._label("epsilon")] = self._odometer.read(self.run)
        losses = self._losses if final else self._losses[self._logged :]
        if losses:
            numbers[self._label("loss")] = math.fsum(losses) / len(losses)
        return numbers

    def _label(self, name: str) -> str:
        return labelled(name, private=self.run.ledger.header.secure_randomness)

    # -- the run, as the Trainer's callbacks drive it ----------------------------------------------------------------

    def _begin(self, steps: int) -> None:
        """Make the run, when model and optimizer are as the Trainer trains them."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # without Accelerate's wrapper
        given = settings.arguments(self.args, self.privacy, size=self._lot_size, steps=steps)
        model = self.model_wrapped  # type: ignore[attr-defined]
        self.run = make_private(model, optimizer, self._dataset, collate_fn=self._collate, **given)
        self._losses, self._logged = [], 0
        if self._resumed is not None:
            self.run.load(Path(self._resumed) / RUN)
        self._taken = self.run.step

    def _skipped(self) -> int:
        """Return how many steps a checkpoint holds; nothing when it is asked again."""
        taken, self._taken = self._taken, 0
        return taken

    def begin_lot(self) -> bool:
        """Record and draw the next lot and read its first batch; false where the steps or the budget are used up."""
        if self.run.step >= self.run.steps:
            return False
        lot = self.run.lot()
        try:
            self._batch = next(lot)
        except BudgetExceeded as error:
            log.warning("stopped after %d of %d steps: %s", self.run.step, self.run.steps, error)
            return False
        self._lot = lot
        return True

    def _finish_lot(self) -> None:
        assert self._lot is not None
        next(self._lot, None)
        self._lot = None
        if "loss" in self.run.metrics:
            self._losses.append(self.run.metrics["loss"])

    def _save_run(self) -> None:
        if not self.args.save_only_model:
            step = self.state.global_step  # type: ignore[attr-defined]
            self.run.save(Path(self.args.output_dir) / f"checkpoint-{step}" / RUN)

    def _end(self) -> None:
        """Leave model and optimizer as ordinary ones; a lot that was left half-way stays charged."""
        lot, self._lot, self._batch = self._lot, None, None
        if lot is not None:
            lot.close()  # type: ignore[attr-defined]
        if hasattr(self, "run"):
            self.run.close()
            self.run.ledger.close()


class PrivateTrainer(Private, transformers.Trainer):  # type: ignore[misc]
    """The Hugging Face `Trainer` with a guarantee; see `Private`."""


class PrivateSeq2SeqTrainer(Private, transformers.Seq2SeqTrainer):  # type: ignore[misc]
    """The Hugging Face `Seq2SeqTrainer` with a guarantee; see `Private`."""


class _Lots(transformers.TrainerCallback):  # type: ignore[misc]
    """Begins the run, finishes lots and saves the run when the Trainer does so with its own things."""

    def __init__(self, trainer: Private) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer._begin(state.max_steps)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer._finish_lot()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer._save_run()
