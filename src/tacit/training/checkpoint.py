"""Checkpoints keep tensors as safetensors and all other state as JSON; tacit never unpickles.

A checkpoint holds weights, optimizer state, the sampler's position, adaptive clipping state, the ledger's position,
and the state of objects given by name (a learning-rate scheduler, an average of the weights). It never holds a key or a
state of the random generator: a resumed run draws new noise and new lots, so it replays nothing, and steps that the
ledger holds beyond the checkpoint stay charged. New correlated noise depends on past noise; its keys are in a separate
file beside the ledger (`tacit.training.block_file`).
"""

from __future__ import annotations

import copy
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tacit._files import sync
from tacit.ledger import Ledger
from tacit.mechanisms import AdaptiveClipping
from tacit.training.block_file import block_sampler, resume_block
from tacit.training.checkpoint_files import FORMAT, first_line, positive, read_facts, read_tensors
from tacit.training.dtensor_local import cut_like, whole
from tacit.training.json_state import Stateful, pack, unpack
from tacit.training.open_run import OpenRun
from tacit.training.snapshot import bit_sum

log = logging.getLogger("tacit")

_MISFITS = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,  # and so RecursionError
    IndexError,
    OverflowError,
)


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a checkpoint."""

    weights: dict[str, Tensor]
    slots: dict[str, Tensor]
    others: dict[str, Tensor]
    facts: dict[str, Any]
    stamp: dict[str, str]


def collect(run: OpenRun, others: Mapping[str, Stateful]) -> Content:
    """Return the content of a checkpoint. Only the first process keeps the gathered shards.

    With shards, all processes must ask together.
    """
    run.between_steps(saving=True)
    together = partial(whole, keep=run.team.rank == 0)
    parts: dict[str, Tensor] = {}
    packed = {name: pack(other.state_dict(), name, parts, together) for name, other in others.items()}
    state = run.optimizer.state_dict()
    slots, plain = _split(state["state"], together)
    facts = {
        "format": FORMAT,
        "step": run.step,
        "optimizer": {"state": plain, "groups": state["param_groups"]},
        "sampler": run.sampler.state(),
        "clipping": run.clipping_state(),
        "metrics": run.metrics,
        "others": packed,
        "noise_multiplier": run.settings.solved,
        "ledger": {"steps": len(run.ledger), "digest": run.ledger.digest},
    }
    weights = {name: together(tensor).contiguous() for name, tensor in _unshared(run.model).items()}
    return Content(weights=weights, slots=slots, others=parts, facts=facts, stamp=run.ledger.stamp)


def save(content: Content, directory: str | Path) -> None:
    """Write a checkpoint. It replaces an older one in ``directory`` only when it is complete."""
    target = Path(directory)
    fresh, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    shutil.rmtree(fresh, ignore_errors=True)
    if target.exists():  # else the old one, left by a crash between the two renames below, is all there is
        shutil.rmtree(old, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_file(content.weights, fresh / "model.safetensors", metadata=content.stamp)
    save_file(content.slots, fresh / "optimizer.safetensors")
    if content.others:
        save_file(content.others, fresh / "others.safetensors")
    (fresh / "run.json").write_text(json.dumps(content.facts, indent=1, allow_nan=False))
    for file in fresh.iterdir():
        sync(file)
    sync(fresh)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def load(run: OpenRun, directory: str | Path, others: Mapping[str, Stateful]) -> str:
    """Continue from a checkpoint, in a run made with the same settings on the same ledger.

    Returns a text that is the same in every process that read the same checkpoint.
    """
    run.between_steps()
    source = Path(directory)
    if not source.exists() and source.with_name(source.name + ".old").exists():
        source = source.with_name(source.name + ".old")  # stopped between the two renames
    if not (source / "run.json").exists():
        raise ValueError(f"there is no checkpoint in {str(directory)!r}.")
    facts = read_facts(source / "run.json")
    weights, slots = read_tensors(source / "model.safetensors"), read_tensors(source / "optimizer.safetensors")
    parts = read_tensors(source / "others.safetensors") if (source / "others.safetensors").exists() else {}
    if set(facts["others"]) != set(others):
        held, given = (", ".join(sorted(names)) or "nothing" for names in (facts["others"], others))
        raise ValueError(
            f"the checkpoint in {str(directory)!r} was saved with the state of {held}; load was given {given}."
        )
    if len(run.ledger) < facts["ledger"]["steps"]:
        raise ValueError(
            f"the checkpoint was written after {facts['ledger']['steps']} recorded steps but the ledger has "
            f"{len(run.ledger)}; continue with the ledger it belongs to."
        )
    if _digest(run.ledger, facts["ledger"]["steps"]) != facts["ledger"].get("digest"):
        raise ValueError(
            f"the checkpoint in {str(directory)!r} belongs to another ledger; this ledger does not have its cost. Give "
            "make_private the ledger that the checkpoint was written with."
        )
    undo = _undo(run, others)
    try:
        metrics = {str(name): float(value) for name, value in facts["metrics"].items()}
        cut = cut_like({**weights, **_tied(run.model, weights)}, run.model.state_dict())
        run.model.load_state_dict(cut)
        state = _cut_slots(_join(slots, facts["optimizer"]["state"]), run)
        run.optimizer.load_state_dict({"state": state, "param_groups": _groups(run, facts["optimizer"]["groups"])})
        run.step = facts["step"]
        _restore_clipping(run, facts["clipping"])
        if facts["noise_multiplier"] is not None:
            run.settings = run.settings.resumed_with(positive(facts["noise_multiplier"]))
        for name, other in others.items():
            other.load_state_dict(cut_like(unpack(facts["others"][name], parts), other.state_dict()))
        cyclic = block_sampler(run.sampler)
        live = None if cyclic is None else cyclic.keys
        run.sampler.restore(facts["sampler"])
        if cyclic is not None and live is not None:
            resume_block(cyclic, run.ledger, facts["sampler"], run.next_step(), live)
    except _MISFITS as error:
        undo()
        raise ValueError(f"the checkpoint in {str(directory)!r} does not fit this run: {first_line(error)}") from error
    run.metrics.clear()
    run.metrics.update(metrics)
    run.renew_randomness()
    if run.team.rank == 0:
        _tell(run, len(run.ledger) - facts["ledger"]["steps"])
    return f"{facts} {[(name, int(bit_sum(each))) for name, each in sorted((weights | slots | parts).items())]}"


def _tell(run: OpenRun, lost: int) -> None:
    log.log(
        logging.WARNING if lost else logging.INFO,
        "resumed at step %d of %d; the ledger has %d steps that were charged after the checkpoint was written: the "
        "checkpoint lacks their releases, and they stay charged",
        run.step,
        run.steps,
        lost,
    )


def _undo(run: OpenRun, others: Mapping[str, Stateful]) -> Callable[[], None]:
    """Restores everything that `load` changes, except the sampler, which takes a whole state or none."""
    weights = {name: value.detach().clone() for name, value in run.model.state_dict().items()}
    optimizer = copy.deepcopy(run.optimizer.state_dict())
    step, settings, clipping = run.step, run.settings, run.clipping_state()
    states = {name: copy.deepcopy(other.state_dict()) for name, other in others.items()}

    def undo() -> None:
        run.model.load_state_dict(weights)
        run.optimizer.load_state_dict(optimizer)
        run.step, run.settings = step, settings
        if clipping:
            _restore_clipping(run, clipping)
        for name, other in others.items():
            other.load_state_dict(states[name])

    return undo


def _restore_clipping(run: OpenRun, state: dict[str, Any]) -> None:
    clipping = run.clipping()
    if isinstance(clipping, AdaptiveClipping):
        clipping.restore(state)


def _digest(ledger: Ledger, steps: int) -> str:
    """Return the digest that the ledger had after its first ``steps`` steps."""
    replay = Ledger(ledger.header)
    for step, count in ledger.entries:
        for _ in range(min(count, steps)):
            replay.record(step)
        steps -= min(count, steps)
    return replay.digest


def _unshared(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the state without second names of a tensor, which safetensors does not store."""
    seen: set[int] = set()
    kept = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            kept[name] = tensor.detach()
    return kept


def _tied(model: torch.nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    names: dict[int, str] = {}
    tied = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first = names.setdefault(id(tensor), name)
        if first != name and first in weights:
            tied[name] = weights[first]
    return tied


def _cut_slots(state: dict[int, dict[str, Any]], run: OpenRun) -> dict[int, dict[str, Any]]:
    """Return the optimizer's state, with the entries of sharded parameters sharded in the same way."""
    parameters = [each for group in run.optimizer.param_groups for each in group["params"]]
    return {
        index: {
            name: cut_like(value, parameters[index])
            if isinstance(value, Tensor) and value.shape == parameters[index].shape
            else value
            for name, value in slots.items()
        }
        for index, slots in state.items()
    }


def _split(
    state: dict[Any, dict[str, Any]], together: Callable[[Tensor], Tensor]
) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for index, values in state.items():
        plain[str(index)] = {}
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{index}/{name}"] = together(value).contiguous()
            else:
                plain[str(index)][name] = value
    return tensors, plain


def _join(tensors: dict[str, Tensor], plain: dict[str, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in plain.items()}
    for key, tensor in tensors.items():
        index, name = key.split("/", 1)
        state.setdefault(int(index), {})[name] = tensor
    return state


def _groups(run: OpenRun, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Restore the live optimizer's tuples (betas), which JSON does not have, and its settings that JSON cannot
    hold."""
    live = run.optimizer.state_dict()["param_groups"]
    return [
        own | {name: _setting(name, value, own.get(name)) for name, value in group.items()}
        for group, own in zip(groups, live, strict=True)
    ]


def _setting(name: str, value: Any, own: Any) -> Any:
    """Return a setting of the optimizer, checked to be of the live one's kind; a number is at least zero."""
    if isinstance(own, tuple):
        return tuple(_setting(name, item, like) for item, like in zip(value, own, strict=True))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(own, int | float) and not isinstance(own, bool) and not (number and value >= 0):
        raise ValueError(f"{name} of the optimizer is {value!r}; it must be a number, at least 0.")
    if isinstance(own, bool) and not isinstance(value, bool | None):
        raise ValueError(f"{name} of the optimizer is {value!r}; it must be true or false.")
    return value
