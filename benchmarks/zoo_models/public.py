"""Train a model through `tacit.make_private`, as its user would, for two steps."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset

from zoo_models.cases import Batch, Entry, take

RECORDS, LOT, STEPS, RATE, NOISE = 12, 6, 2, 0.01, 1e-6


def alone(batch: Batch) -> Batch:
    """Return the only example of a batch of one, without its batch dimension, as data sets hold examples."""
    if isinstance(batch, Tensor):
        return batch.squeeze(0)
    if isinstance(batch, Mapping):
        return {name: alone(value) for name, value in batch.items()}
    return tuple(alone(value) for value in batch)


class Examples(Dataset[Any]):
    """The examples of one batch."""

    def __init__(self, batch: Batch) -> None:
        self.examples = [alone(take(batch, torch.tensor([i]))) for i in range(RECORDS)]

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


def released(parameter: torch.nn.Parameter, gradient: Tensor) -> Tensor:
    """Return a gradient after the gradient hooks of its parameter, which see what is released."""
    for hook in (parameter._backward_hooks or {}).values():
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    return gradient


def publicly(entry: Entry) -> dict[str, Any]:
    """Return `accepted`, or the refusal, of an ordinary private training loop.

    The noise is almost none: each step must be the clipped sum of the loop over single examples, up to a
    hundredth: parameters are rounded.
    """
    import tacit
    from tacit.gradients.traced import plain
    from zoo_models.measure import Clip, built, failure, flat, oracle, trainable

    case = built(entry)
    if case.take is not take or "batch_dim" in case.options:
        return {"outcome": "skipped", "reason": "its examples are not rows of tensors"}
    optimizer = torch.optim.SGD([p for p in case.model.parameters() if p.requires_grad], lr=RATE)
    examples = Examples(case.batch(RECORDS, torch.Generator().manual_seed(7)))
    taken, off = 0, [0.0]
    reference = copy.deepcopy(case.model)
    wanted: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = tacit.make_private(
                case.model,
                optimizer,
                examples,
                lot_size=LOT,
                steps=STEPS,
                clipping=tacit.Flat(1.0),
                noise_multiplier=NOISE,
            )
        for batch in run.batches():
            if entry.honest and not run.in_trial:
                reference.load_state_dict(case.model.state_dict())
                bare = pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, plain(batch))
                size = len(next(t for t in pytree.tree_leaves(bare) if isinstance(t, Tensor)))
                found = oracle(case, reference, size, bare, Clip(1.0))
                wanted = {n: g + wanted.get(n, 0) for n, g in found.total.items()} if size else wanted
            before, step = {n: p.detach().clone() for n, p in trainable(case.model).items()}, run.step
            case.loss(case.model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step > step and wanted:
                moved = flat({n: before[n] - p.detach() for n, p in trainable(case.model).items()}).double()
                hooked = {n: released(p, wanted[n].to(p.dtype) / LOT) for n, p in trainable(case.model).items()}
                expected = flat(hooked).double() * RATE
                off.append(float((moved - expected).norm() / expected.norm()))
                wanted = {}
            taken += 1
    except Exception as error:
        return failure(error) | {"batch": taken}
    if max(off) > 1e-2:
        return {"outcome": "wrong", "reason": f"a step is off by {max(off):.1e}", "error": max(off)}
    return {"outcome": "accepted", "error": max(off)}
