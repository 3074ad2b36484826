"""Measure one model of the zoo: the oracle, and Tacit against it."""

from __future__ import annotations

import copy
import linecache
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo_models.cases import Batch, Case, Entry

TOLERANCE = 1e-4
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


def off_by(norms: Tensor, total: Mapping[str, Tensor], wanted: Oracle) -> float:
    """Return the larger of the relative errors of the norms and of the clipped sum."""
    floor = max(1e-6 * float(wanted.norms.max()), 1e-12)
    off = (norms.double() - wanted.norms).abs() / wanted.norms.clamp_min(floor)
    return max(float(off.max()), distance(total, wanted.total))


def with_tacit(entry: Entry, **declared: Any) -> Result:
    """Train on a few batches with the engine attached, as `tacit.make_private` attaches it, and compare."""
    from tacit import gradients

    case = built(entry)
    reference = copy.deepcopy(case.model) if entry.honest else None
    errors: list[float] = []
    try:
        engine = gradients.attach(case.model, **(case.options | declared))
        for size, batch in batches(case):
            case.loss(case.model, engine.trace(batch, size)).backward()
            wanted = None if reference is None else oracle(case, reference, size, batch)
            norms = engine.norms()
            total = engine.clipped_sum(Clip(1.0) if wanted is None else wanted.clip)
            errors.append(0.0 if wanted is None else off_by(norms, total, wanted))
    except Exception as error:
        return failure(error) | {"batch": len(errors)}
    result: Result = {"isolated": list(getattr(engine, "isolated", ())), "slow": sorted(engine.slow_operations)}
    if reference is None:
        return result | {"outcome": "accepted", "reason": "a model that mixes examples was not refused"}
    result |= {"error": max(errors), "errors": errors}
    if not max(errors) <= TOLERANCE:
        result |= (truth := from_float64(entry, **declared))
        if not truth["error"] <= max(TOLERANCE, 2 * truth["loop"]):
            return result | {"outcome": "wrong", "reason": f"off by {truth['error']:.1e}"}
    return result | {"outcome": "isolated" if result["isolated"] else "fast"}


def from_float64(entry: Entry, **declared: Any) -> Result:
    """Return how far Tacit and the loop over single examples, both in float32, are from the loop in float64.

    Where the two differ, either may be the inexact one: a ReLU whose input is zero up to rounding, or a saturated loss,
    makes the float32 gradient of one example a matter of chance.
    """
    from tacit import gradients

    case = built(entry)
    single, double = copy.deepcopy(case.model), copy.deepcopy(case.model).double()
    engine = gradients.attach(case.model, **(case.options | declared))
    errors = []
    for size, batch in batches(case):
        case.loss(case.model, engine.trace(batch, size)).backward()
        wanted = oracle(case, double, size, widened(batch))
        loop = oracle(case, single, size, batch, wanted.clip)
        errors.append((off_by(engine.norms(), engine.clipped_sum(wanted.clip), wanted),
                       off_by(loop.norms, loop.total, wanted)))  # fmt: skip
    ours, loops = (max(column) for column in zip(*errors))
    return {"error": ours, "loop": loops, "reason": f"the loop in float32 is {loops:.0e} from the loop in float64"}


def tacit_twice(entry: Entry) -> Result:
    """As users begin, with nothing declared; if that is refused, once more with `reduction="mean"`."""
    result = with_tacit(entry)
    if entry.honest and result["outcome"] in ("refused", "crash"):
        result["declared"] = with_tacit(entry, reduction="mean")
    return result
