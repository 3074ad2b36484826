"""The Hugging Face Trainer with a guarantee: tasks, settings, logs, checkpoints."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from integrations.tiny import task
from tacit.ledger import Ledger
from tacit.sampling import PoissonSampler

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra 'hf')")
pytest.importorskip("accelerate", reason="accelerate is not installed (extra 'hf')")

from tacit.integrations.transformers import Private, PrivateSeq2SeqTrainer, PrivateTrainer  # noqa: E402

TASKS = ("causal", "classification", "tokens", "answers", "seq2seq")
LOSS = {"loss": tacit.Metric(bound=5.0)}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def arguments(directory: Path, kind: Any, **others: Any) -> Any:
    """Lots of 12 of the 48 sentences in batches of at most 6, twice over."""
    given = {
        "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "logging_steps": 2,
        "save_strategy": "no",
        "learning_rate": 0.01,
        **others,
    }
    return kind(str(directory), report_to=[], use_cpu=True, disable_tqdm=True, **given)


def trainer(name: str, directory: Path, *, kind: Any = PrivateTrainer, privacy: Any = None, **others: Any) -> Any:
    torch.manual_seed(0)
    model, data, words = task(name)
    args = {key: others.pop(key) for key in list(others) if hasattr(transformers.TrainingArguments, key)}
    seq2seq = kind is PrivateSeq2SeqTrainer
    args["kind"] = transformers.Seq2SeqTrainingArguments if seq2seq else transformers.TrainingArguments
    made = {"model": model, "train_dataset": data, "processing_class": words, **others}
    return kind(args=arguments(directory, **args), privacy={"noise_multiplier": 1.0, **(privacy or {})}, **made)


@pytest.mark.parametrize("name", TASKS)
def test_each_task_trains_for_its_epochs_with_a_released_loss(name: str, tmp_path: Path) -> None:
    kind = PrivateSeq2SeqTrainer if name == "seq2seq" else PrivateTrainer
    made = trainer(name, tmp_path, kind=kind, privacy={"metrics": LOSS})
    before = {key: value.clone() for key, value in made.model.state_dict().items()}
    output = made.train()
    assert output.global_step == made.run.step == 8 == len(Ledger.load(tmp_path / "ledger.jsonl"))
    assert made.state.epoch == 2.0 and made.run.abandoned == 0
    assert made.run.settings.lot_size(0) == 12 and made.run.settings.batch_size == 6
    assert any(not torch.equal(before[key], value) for key, value in made.model.state_dict().items())
    assert -10 < output.training_loss < 15
    logged = {key for line in made.state.log_history for key in line}
    assert {"private/loss", "private/epsilon", "private/noise_multiplier", "learning_rate"} <= logged
    assert not {"loss", "train_loss", "grad_norm", "total_flos"} & logged
    assert made.state.total_flos == 0


class _Watched(PrivateTrainer):
    """Keeps the exact loss of each example of each batch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.differences: list[float] = []

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **others)
        if len(inputs["input_ids"]):
            mean = self.example_losses(outputs, inputs).mean()
            self.differences.append(float(loss.detach().as_subclass(torch.Tensor) - mean))
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "seq2seq" else []) for name in TASKS]
)
def test_the_mean_of_the_examples_losses_is_the_loss_of_the_model(name: str, tmp_path: Path) -> None:
    """All sentences have five words, so a mean over tokens is the mean of the examples' means."""
    made = trainer(name, tmp_path, kind=_Watched, max_steps=2)
    made.train()
    assert len(made.differences) >= 4 and max(map(abs, made.differences)) < 1e-5


def test_the_trainer_ends_where_a_loop_of_ones_own_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody in each lot, no noise: the same parameters, to rounding."""
    from tacit.mechanisms import lattice

    monkeypatch.setattr(lattice, "add_gaussian_", lambda sums, source: list(sums))
    made = trainer(
        "classification", tmp_path, max_steps=3, privacy={"lot_size": 48}, lr_scheduler_type="constant", optim="sgd"
    )
    start = {key: value.clone() for key, value in made.model.state_dict().items()}
    made.train()
    model, data, _ = task("classification")
    model.load_state_dict(start)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = tacit.make_private(
        model, optimizer, data.with_format("torch"), lot_size=48, steps=3, clipping=1.0, noise_multiplier=1.0
    )
    for module in (*model.modules(), *made.model.modules()):
        assert not isinstance(module, torch.nn.Dropout) or module.p == 0
    for batch in run.batches():
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    for key, value in made.model.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[key], atol=1e-6, rtol=1e-4)


def test_a_budget_is_kept_and_ends_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = trainer("classification", tmp_path, privacy={"budget": tacit.Budget(4.0, 1e-5)})
    with caplog.at_level(logging.WARNING, "tacit"):
        output = made.train()
    assert 0 < output.global_step == made.run.step == len(made.run.ledger) < 8
    assert made.run.guarantee().epsilon <= 4.0 and f"stopped after {made.run.step} of 8 steps" in caplog.text


def test_the_noise_is_solved_for_the_epochs_of_the_trainer(tmp_path: Path) -> None:
    made = trainer("classification", tmp_path, privacy={"noise_multiplier": None, "budget": tacit.Budget(2.0, 1e-5)})
    made.train()
    assert made.run.step == 8 and 1.9 < made.run.guarantee().epsilon <= 2.0


def test_evaluation_and_early_stopping_work_as_ever(tmp_path: Path) -> None:
    _, data, _ = task("classification")
    made = trainer(
        "classification",
        tmp_path,
        num_train_epochs=5,
        eval_dataset=data.select(range(8)),
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        compute_metrics=lambda found: {"accuracy": 0.5},
        callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=2)],
    )
    made.train()
    assert made.state.epoch == 3.0 and made.run.step == 12 == len(made.run.ledger)
    assert [line["eval_accuracy"] for line in made.state.log_history if "eval_accuracy" in line] == [0.5] * 3
    assert made.state.best_model_checkpoint is not None and made.evaluate()["eval_accuracy"] == 0.5


@pytest.mark.parametrize(
    "settings",
    [{"bf16": True}, {"gradient_checkpointing": True}, {"label_smoothing_factor": 0.1}, {"neftune_noise_alpha": 5}],
    ids=lambda settings: next(iter(settings)),
)
def test_usual_settings_train(tmp_path: Path, settings: dict[str, Any]) -> None:
    made = trainer("causal", tmp_path, max_steps=2, **settings)
    made.train()
    assert made.run.step == 2 == len(made.run.ledger) and math.isfinite(made.run.guarantee(1e-5).epsilon)


def _packed(directory: Path, **settings: Any) -> Any:
    """Arguments as TRL's have them."""
    args = arguments(directory, transformers.TrainingArguments)
    vars(args).update(settings)
    return args


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "lengths": ({"train_sampling_strategy": "group_by_length"}, "lengths decide which records come together"),
    "half": ({"fp16": True}, "set bf16=True instead"),
    "memory": ({"auto_find_batch_size": True}, "set per_device_train_batch_size"),
    "tokens": ({"include_num_input_tokens_seen": "all"}, "without noise; leave it out"),
    "clip": ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0; it is the clip norm"),
    "packing": ({"packing": True}, "set packing=False"),
    "kernels": ({"use_liger_kernel": True}, "fused loss does not show the gradient"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_mix_or_choose_records_are_refused_before_any_charge(name: str, tmp_path: Path) -> None:
    settings, why = REFUSED[name]
    model, data, words = task("classification")
    args = _packed(tmp_path, **settings)
    with pytest.raises(ValueError, match=why):
        PrivateTrainer(
            model=model, args=args, train_dataset=data, processing_class=words, privacy={"noise_multiplier": 1.0}
        )
    assert not (tmp_path / "ledger.jsonl").exists()


PRIVACY: list[tuple[Any, str]] = [
    (3.0, "give arguments of tacit.make_private"),
    ({"epochs": 3}, "write num_train_epochs="),
    ({"batch_size": 3}, "write per_device_train_batch_size="),
    ({"lot_size": lambda step: 3}, "give a number"),
    ({"metrics": {"accuracy": tacit.Metric(bound=1.0)}}, "observes 'loss' only"),
]


@pytest.mark.parametrize(("privacy", "why"), PRIVACY, ids=[why for _, why in PRIVACY])
def test_wrong_privacy_arguments_are_refused_with_what_to_write(privacy: Any, why: str, tmp_path: Path) -> None:
    model, data, words = task("classification")
    args = arguments(tmp_path, transformers.TrainingArguments)
    with pytest.raises(ValueError, match=why):
        PrivateTrainer(model=model, args=args, train_dataset=data, processing_class=words, privacy=privacy)


def test_a_search_and_a_stream_are_refused(tmp_path: Path) -> None:
    made = trainer("classification", tmp_path)
    with pytest.raises(ValueError, match=r"choose with tacit\.tuning"):
        made.hyperparameter_search()
    stream = task("classification")[1].to_iterable_dataset()
    streamed = trainer("classification", tmp_path, train_dataset=stream, max_steps=2)
    with pytest.raises(ValueError, match="make it map-style"):
        streamed.train()
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_flattening_collator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="puts all records of a batch in one row"):
        trainer("causal", tmp_path, data_collator=transformers.DataCollatorWithFlattening())


def test_numbers_that_a_subclass_logs_without_noise_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Chatty(PrivateTrainer):
        def compute_loss(self, *args: Any, **others: Any) -> Any:
            found = super().compute_loss(*args, **others)
            self.log({"exact_loss": 1.0})
            return found

    made = trainer("classification", tmp_path, kind=Chatty, max_steps=2)
    made.train()
    assert not any("exact_loss" in line for line in made.state.log_history)
    assert caplog.text.count("exact_loss left out of the logs") == 1


def test_adapters_of_peft_train_and_the_base_model_stays(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed (extra 'hf')")
    base, _, _ = task("causal")
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, task_type="CAUSAL_LM"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = trainer("causal", tmp_path, model=model, privacy={"metrics": LOSS}, save_strategy="epoch")
    made.train()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and all("lora" in name for name in changed)
    assert (tmp_path / "checkpoint-8" / "adapter_model.safetensors").exists()


def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody in each lot and no noise: stopping at a checkpoint in the middle of an epoch changes nothing."""
    from tacit.mechanisms import lattice

    monkeypatch.setattr(lattice, "add_gaussian_", lambda sums, source: list(sums))
    monkeypatch.setattr(PoissonSampler, "_choose", lambda sampler, rate: np.arange(sampler.records))
    ends = []
    for kind in ("whole", "resumed"):
        settings = {"save_steps": 3, "save_strategy": "steps", "num_train_epochs": 2, "per_device_train_batch_size": 12}
        made = trainer("classification", tmp_path / kind, **settings)
        if kind == "resumed":
            made.add_callback(_StopAt(3))
            made.train()
            assert made.state.global_step == 3
            made = trainer("classification", tmp_path / kind, **settings)
        made.train(resume_from_checkpoint=kind == "resumed")
        assert made.run.step == made.state.global_step == 4 == len(made.run.ledger) and made.state.epoch == 2.0
        ends.append({name: value.clone() for name, value in made.model.state_dict().items()})
    for name, value in ends[0].items():
        # Records are summed in random order; Adam makes that rounding a part of a step (5e-5) where gradients vanish.
        torch.testing.assert_close(value, ends[1][name], atol=5e-6, rtol=1e-4)


class _StopAt(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = state.global_step == self.step
        return control


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("causal", "answers") else pytest.mark.slow) for name in TASKS]
)
def test_an_empty_lot_is_a_step(name: str, tmp_path: Path) -> None:
    """One sentence is expected in a lot: none comes in a third of them."""
    sizes: list[int] = []

    class Counting(PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **others: Any) -> Any:
            sizes.append(len(inputs["input_ids"]))
            return super().compute_loss(model, inputs, *args, **others)

    made = trainer(name, tmp_path, kind=Counting, max_steps=14, privacy={"lot_size": 1, "metrics": LOSS, "seed": 3})
    made.train()
    assert made.run.step == 14 == len(made.run.ledger) and 0 in sizes and max(sizes) > 1
    assert "not_private/epsilon" in made.state.log_history[-1]  # a seed is for debugging


def test_an_evaluation_on_the_training_set_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, data, words = task("classification")
    args = arguments(tmp_path, transformers.TrainingArguments)
    made = PrivateTrainer(
        model=model, args=args, train_dataset=data, eval_dataset=data, processing_class=words, privacy={"seed": 1}
    )
    made.evaluate()
    assert "the evaluation set is the training set: its numbers are not private" in caplog.text


def test_a_loss_that_is_not_known_for_each_example_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not known for Linear .* leave 'loss' out of metrics"):
        trainer("classification", tmp_path, model=torch.nn.Linear(2, 2), privacy={"metrics": LOSS})


def test_a_model_with_dropout_is_tried_and_a_mixing_loss_refused(tmp_path: Path) -> None:
    class Mixing(PrivateTrainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            logits = model(**inputs).logits
            each = torch.nn.functional.cross_entropy(logits, inputs["labels"], reduction="none")
            return (each * len(logits)).mean()

    made = trainer("classification", tmp_path, kind=Mixing)
    for module in made.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    with pytest.raises(ValueError, match="run together and in two parts"):
        made.train()


def test_numbers_that_a_trainer_behind_the_mixin_adds_to_its_logs_are_left_out(tmp_path: Path) -> None:
    class Telling(transformers.Trainer):  # type: ignore[misc]
        """Adds exact numbers of the records in `log`, as trl.SFTTrainer does."""

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            super().log({**logs, "eval_accuracy" if "eval_loss" in logs else "accuracy": 0.5}, *args, **kwargs)

    class PrivateTelling(Private, Telling):  # type: ignore[misc]
        pass

    made = trainer("classification", tmp_path, kind=PrivateTelling)
    made.train()
    assert made.state.log_history and not any("accuracy" in logs for logs in made.state.log_history)
    made.evaluate(made.train_dataset.select(range(6)))
    assert made.state.log_history[-1]["eval_accuracy"] == 0.5
