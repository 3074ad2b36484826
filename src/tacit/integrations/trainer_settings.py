"""Settings of the Hugging Face `Trainer`: which become arguments of `make_private`, and which are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

from tacit.sampling import chosen_records
from tacit.training import Metric, Parallel
from tacit.training.loaders import no_records_by_number

OF_THE_TRAINER = {
    "epochs": "num_train_epochs",
    "steps": "max_steps",
    "batch_size": "per_device_train_batch_size",
    "num_workers": "dataloader_num_workers",
    "pin_memory": "dataloader_pin_memory",
    "collate_fn": "data_collator",
}
"""Arguments of `make_private` that the Trainer has under other names."""


def check_privacy(privacy: Any) -> None:
    """Refuse ``privacy`` that is no mapping, or that has an argument of the Trainer."""
    if not isinstance(privacy, Mapping):
        raise ValueError(
            f"privacy is {privacy!r}; give arguments of tacit.make_private: "
            'privacy={"budget": tacit.Budget(3.0, 1e-5)}.'
        )
    for name, own in OF_THE_TRAINER.items():
        if name in privacy:
            raise ValueError(f"privacy has {name!r}, which the Trainer decides; write {own}= where the Trainer has it.")
    if callable(privacy.get("lot_size")):
        raise ValueError("lot_size is a function; the Trainer counts epochs in lots of one size: give a number.")
    metrics = privacy.get("metrics") or {}
    others = sorted(set(metrics) - {"loss"}) if isinstance(metrics, Mapping) else []
    if others:
        raise ValueError(
            f"metrics has {others[0]!r}; PrivateTrainer observes 'loss' only: write a loop with run.observe for others."
        )


def check_arguments(args: Any, collator: Any) -> None:
    """Refuse settings that mix records, choose records by their content, or log exact numbers."""
    strategy = str(getattr(args, "train_sampling_strategy", "random"))
    _refuse(
        strategy not in ("random", "sequential") or bool(getattr(args, "group_by_length", False)),
        f"train_sampling_strategy is {strategy!r}: lengths decide which records come together, and the guarantee needs "
        "lots that are drawn at random; leave it out.",
    )
    _refuse(
        bool(getattr(args, "packing", False) or getattr(args, "padding_free", False)),
        "packing is on: several records then share a row, where one moves the gradients of the others; set "
        "packing=False and padding_free=False.",
    )
    _refuse(
        type(collator).__name__ == "DataCollatorWithFlattening",
        "the data collator is a DataCollatorWithFlattening, which puts all records of a batch in one row; pad instead: "
        "DataCollatorWithPadding(tokenizer, padding='max_length', max_length=128).",
    )
    _refuse(
        bool(args.fp16),
        "fp16 is on: its loss scaling skips a step when a record overflows, which tells something of that record; "
        "set bf16=True instead.",
    )
    _refuse(
        bool(args.auto_find_batch_size),
        "auto_find_batch_size is on: it begins again, and pays again, when memory is short; set "
        "per_device_train_batch_size, which bounds memory and changes nothing else.",
    )
    _refuse(
        str(args.include_num_input_tokens_seen) not in ("no", "False"),
        "include_num_input_tokens_seen is on: it logs how many tokens the records of a lot have, without noise; leave "
        "it out.",
    )
    _refuse(
        bool(args.deepspeed or args.fsdp),
        "DeepSpeed or FSDP is on: both combine gradients by themselves; use torchrun, or fully_shard with a loop of "
        "your own (docs/scale.md).",
    )
    _refuse(
        bool(getattr(args, "use_liger_kernel", False)),
        "use_liger_kernel is on: its fused loss does not show the gradient of each record; leave it out.",
    )
    _refuse(
        args.n_gpu > 1,
        f"one process has {args.n_gpu} devices, which the Trainer would use with DataParallel; start one process for "
        "each: torchrun --nproc-per-node.",
    )
    _refuse(
        not 0 < args.max_grad_norm < math.inf,
        f"max_grad_norm is {args.max_grad_norm!r}; it is the clip norm of each record's gradient and must be above 0.",
    )


def _refuse(found: bool, why: str) -> None:
    if found:
        raise ValueError(why)


def refuse_search() -> None:
    """Refuse a search of hyperparameters."""
    _refuse(
        True,
        "hyperparameter_search looks at the records once for every trial, which no guarantee here covers; choose with "
        "tacit.tuning, which pays for it, or on public data.",
    )


def records(dataset: Any, privacy: Mapping[str, Any]) -> int:
    """Return the number of records: of users or microbatches where these are the unit, else of examples."""
    if not isinstance(dataset, Sized):
        raise no_records_by_number(dataset)
    if privacy.get("users") is not None:
        return len(set(privacy["users"]))
    if privacy.get("owners") is not None:
        most, ownership = privacy.get("records_per_owner", 1), privacy.get("ownership", "public")
        return len(chosen_records(privacy["owners"], most, ownership))
    return len(dataset) // int(privacy.get("microbatch_size", 1))


def lot_size(args: Any, privacy: Mapping[str, Any]) -> int:
    """Return the expected number of records of a step: the Trainer's total batch size, unless it is given."""
    total = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return int(privacy.get("lot_size", total))


def arguments(args: Any, privacy: Mapping[str, Any], *, size: int, steps: int) -> dict[str, Any]:
    """Return the arguments of `make_private` that do not depend on model and data."""
    given: dict[str, Any] = {
        "clipping": args.max_grad_norm,
        "reduction": "mean",  # what losses of transformers are; empty lots could not tell
        "ledger": Path(args.output_dir) / "ledger.jsonl",
        **privacy,
        "lot_size": size,
        "steps": steps,
        "batch_size": args.per_device_train_batch_size,
        "num_workers": args.dataloader_num_workers,
        "pin_memory": args.dataloader_pin_memory and args.device.type == "cuda",
    }
    if args.world_size > 1:
        given.setdefault("parallel", Parallel())
    return given


def wants_loss(privacy: Mapping[str, Any]) -> bool:
    """Return True if the mean loss of each lot is to be released."""
    return isinstance((privacy.get("metrics") or {}).get("loss"), Metric)
