"""Measure one model of the zoo: the oracle, Tacit, Opacus, and the time of a step."""

from __future__ import annotations

import copy
import linecache
import logging
import statistics
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo_models.cases import Batch, Case, Entry
from zoo_models.public import publicly

TOLERANCE = 1e-4
TIMED_BATCH, REPEATS = 32, 7
Result = dict[str, Any]


@dataclass(frozen=True)
class Clip:
    """Flat clipping to one norm."""

    bound: float

    def partition(self, shapes: Mapping[str, torch.Size]) -> Sequence[tuple[str, ...]]:
        return [tuple(shapes)]

    def weights(self, norms: Tensor) -> Tensor:
        return (self.bound / norms.clamp_min(1e-30)).clamp_max(1)


@dataclass(frozen=True)
class Oracle:
    """The norms of the examples' gradients and their clipped sum, from ordinary autograd on one example at a time."""

    norms: Tensor
    clip: Clip
    total: dict[str, Tensor]
    mean: dict[str, Tensor]


def built(entry: Entry) -> Case:
    """Build the model as a new process would: no earlier part's random state, no code compiled without hooks."""
    torch.manual_seed(0)
    torch.compiler.reset()
    case = entry.build()
    case.model.train()
    return case


def batches(case: Case) -> list[tuple[int, Batch]]:
    """Draw the batches that the model trains on; their sizes differ, as those of Poisson lots do."""
    generator = torch.Generator().manual_seed(7)
    return [(size, case.batch(size, generator)) for size in case.sizes]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def gradient(case: Case, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    model.zero_grad()
    case.loss(model, batch).backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in trainable(model).items()}


def flat(gradients: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([torch.view_as_real(g).flatten() if g.is_complex() else g.flatten() for g in gradients.values()])


def oracle(case: Case, model: nn.Module, size: int, batch: Batch, clip: Clip | None = None) -> Oracle:
    """Return the oracle's answer; the clip norm is the median of the norms unless it is given."""
    rows = [gradient(case, model, case.take(batch, torch.tensor([i]))) for i in range(size)]
    norms = torch.stack([flat(row).double().norm() for row in rows])
    clip = clip or Clip(float(norms.median()) or 1.0)
    weights = clip.weights(norms)
    total = {n: sum(w * row[n].cdouble() if row[n].is_complex() else w * row[n].double()
                    for w, row in zip(weights, rows)) for n in rows[0]}  # fmt: skip
    mean = {n: sum(row[n] for row in rows) / size for n in rows[0]}
    return Oracle(norms, clip, total, mean)


def distance(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    names = list(wanted)
    a, b = flat({n: found[n] for n in names}).double(), flat({n: wanted[n] for n in names}).double()
    return float((a - b).norm() / b.norm().clamp_min(1e-12))


def check_entry(entry: Entry) -> Result:
    """Run the model without privacy: it must train, repeat itself, and, where its loss says so, not mix examples."""
    case = built(entry)
    size, batch = batches(case)[0]
    model = copy.deepcopy(case.model) if entry.honest else case.model
    together = gradient(case, model, batch)
    result: Result = {"parameters": sum(p.numel() for p in trainable(case.model).values())}
    if not entry.honest:
        return result | {"outcome": "ok"}
    repeated = distance(gradient(case, copy.deepcopy(case.model), batch), together)
    alone = oracle(case, copy.deepcopy(case.model), size, batch)
    wanted = alone.mean if case.reduction == "mean" else {n: g * size for n, g in alone.mean.items()}
    apart = distance(together, wanted)
    result |= {"repeated": repeated, "apart": apart, "largest_norm": float(alone.norms.max())}
    if repeated > TOLERANCE or (apart > TOLERANCE and not entry.token_mean):
        return result | {"outcome": "unfit", "reason": f"repeats to {repeated:.1e}, together and alone to {apart:.1e}"}
    return result | {"outcome": "ok"}


# -- Tacit -----------------------------------------------------------------------------------------------------------


def first_sentence(error: BaseException) -> str:
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    line = lines[1] if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return line.split(". ")[0][:300]


def failure(error: BaseException) -> Result:
    """Return `refused` if the library raised the error on purpose, `crash` if something broke."""
    import tacit

    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(tacit.__file__).parent in Path(last.filename).parents
    raised = linecache.getline(last.filename, last.lineno or 0).strip().startswith("raise")
    refused = ours and raised and isinstance(error, (ValueError, RuntimeError, NotImplementedError, TypeError))
    result = {
        "outcome": "refused" if refused else "crash",
        "reason": first_sentence(error),
        "message": str(error)[:2000],
    }
    result["where"] = f"{Path(last.filename).name}:{last.lineno} {last.name}"
    if not refused:
        result["reason"] = f"{type(error).__name__}: {result['reason']}"
    return result


def widened(batch: Batch) -> Batch:
    """Return a batch with its floating-point tensors in double precision."""
    if isinstance(batch, Tensor):
        return batch.double() if batch.dtype == torch.float32 else batch
    if isinstance(batch, Mapping):
        return {name: widened(value) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(widened(value) for value in batch)
    return batch


def with_tacit(entry: Entry, *, double: bool = False, **declared: Any) -> Result:
    """Train on a few batches with the engine attached, as `tacit.make_private` attaches it, and compare."""
    from tacit import gradients

    case = built(entry)
    if double:
        case.model.double()
    reference = copy.deepcopy(case.model) if entry.honest else None
    errors: list[tuple[float, float]] = []
    seen = 0
    try:
        engine = gradients.attach(case.model, **(case.options | declared))
        for size, drawn in batches(case):
            batch = widened(drawn) if double else drawn
            case.loss(case.model, engine.trace(batch, size)).backward()
            wanted = None if reference is None else oracle(case, reference, size, batch)
            norms = engine.norms()
            total = engine.clipped_sum(Clip(1.0) if wanted is None else wanted.clip)
            if wanted is not None:
                floor = 1e-6 * wanted.norms.max()
                off = (norms.double() - wanted.norms).abs() / wanted.norms.clamp_min(floor)
                errors.append((float(off.max()), distance(total, wanted.total)))
            seen += 1
    except Exception as error:
        return failure(error) | {"batch": seen}
    result: Result = {"isolated": list(getattr(engine, "isolated", ())), "slow": sorted(engine.slow_operations)}
    if reference is None:
        return result | {"outcome": "accepted", "reason": "a model that mixes examples was not refused"}
    worst = max(max(pair) for pair in errors)
    result |= {"error": worst, "errors": errors}
    if not worst <= TOLERANCE:
        reason = f"off by {worst:.1e}"
        if not double:  # rounding goes away in double precision, a wrong rule does not
            wide = with_tacit(entry, double=True, **declared)
            result["double"] = wide.get("error", wide.get("reason"))
            reason += f" (in double precision: {wide['error']:.1e})" if "error" in wide else ""
        return result | {"outcome": "wrong", "reason": reason}
    return result | {"outcome": "isolated" if result["isolated"] else "fast"}


def tacit_twice(entry: Entry) -> Result:
    """As users begin, with nothing declared; if that is refused, once more with `reduction="mean"`."""
    result = with_tacit(entry)
    if entry.honest and result["outcome"] in ("refused", "crash"):
        result["declared"] = with_tacit(entry, reduction="mean")
    return result


# -- Opacus ----------------------------------------------------------------------------------------------------------


def with_opacus(entry: Entry) -> Result:
    """Take the same quantities from Opacus' hooks on the first batch."""
    from opacus.grad_sample import GradSampleModule
    from opacus.validators import ModuleValidator

    case = built(entry)
    size, batch = batches(case)[0]
    reference = copy.deepcopy(case.model) if entry.honest else None
    refusals = ModuleValidator.validate(case.model, strict=False)
    if refusals:
        return {"outcome": "refused", "reason": first_sentence(refusals[0])}
    try:
        first = case.options.get("batch_dim", 0) == 0
        wrapped = GradSampleModule(case.model, batch_first=first, loss_reduction=case.reduction)
        case.loss(wrapped, batch).backward()
        each: dict[str, Tensor] = {}
        for name, parameter in trainable(case.model).items():
            sample = parameter.grad_sample
            if isinstance(sample, list):
                sample = torch.stack(sample).sum(0)
            if sample is None:
                raise RuntimeError(f"{name} has no per-example gradient")
            if sample.shape != (size, *parameter.shape):
                raise RuntimeError(
                    f"the per-example gradient of {name} has shape {tuple(sample.shape)}, not [{size}, …]"
                )
            each[name] = sample
    except Exception as error:
        return {"outcome": "crash", "reason": f"{type(error).__name__}: {first_sentence(error)}"}
    if reference is None:
        return {"outcome": "accepted", "reason": "a model that mixes examples was not refused"}
    wanted = oracle(case, reference, size, batch)
    norms = torch.stack([flat({n: g[i] for n, g in each.items()}).double().norm() for i in range(size)])
    weights = wanted.clip.weights(norms)
    total = {n: (g.flatten(1).double().T @ weights).reshape(g.shape[1:]) for n, g in each.items()}
    off = (norms - wanted.norms).abs() / wanted.norms.clamp_min(1e-6 * wanted.norms.max())
    worst = max(float(off.max()), distance(total, wanted.total))
    if not worst <= TOLERANCE:
        return {"outcome": "wrong", "reason": f"off by {worst:.1e}", "error": worst}
    return {"outcome": "exact", "error": worst}


# -- time ------------------------------------------------------------------------------------------------------------


def timed(entry: Entry) -> Result:
    """Compare the CPU time of a private and an ordinary forward and backward pass on a batch of 32 examples."""
    from tacit import gradients

    generator = torch.Generator().manual_seed(7)
    plain, private = built(entry), built(entry)
    batch = plain.batch(TIMED_BATCH, generator)
    engine = gradients.attach(private.model, **private.options)
    clip = Clip(1.0)
    spent: dict[str, list[float]] = {"plain": [], "private": []}
    for turn in range(REPEATS + 2):
        start = time.process_time()
        plain.loss(plain.model, batch).backward()
        plain.model.zero_grad()
        middle = time.process_time()
        private.loss(private.model, engine.trace(batch, TIMED_BATCH)).backward()
        engine.clipped_sum(clip)
        end = time.process_time()
        if turn > 1:
            spent["plain"].append(middle - start)
            spent["private"].append(end - middle)
    medians = {name: statistics.median(values) for name, values in spent.items()}
    return {"outcome": "ok", "ratio": medians["private"] / medians["plain"], "seconds": medians}


PARTS = {"entry": check_entry, "tacit": tacit_twice, "public": publicly, "opacus": with_opacus, "time": timed}


def measure(entry: Entry, part: str) -> Result:
    """Return one part's result; an error is a result too."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        result = PARTS[part](entry)
    except Exception as error:
        result = {"outcome": "crash", "reason": f"{type(error).__name__}: {first_sentence(error)}",
                  "message": traceback.format_exc()[-1500:]}  # fmt: skip
    return result | {"took": round(time.perf_counter() - start, 2)}
