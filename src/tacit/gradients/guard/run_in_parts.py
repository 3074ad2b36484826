"""Run parts of the batch, to detect that an example's output depends on the others.

What operations show is followed one by one. This finds, in one batch, what they do not show: examples that influence
each other through sizes, counts, places in the batch, or code that PyTorch does not see.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.gradients.guard.model_copies import WRITES, NotCompared, advance, copied, silenced, storage_places
from tacit.gradients.guard.same_values import are_equal, is_same
from tacit.gradients.guard.standing_still import Still, seeded
from tacit.gradients.isolation.divided import Divided
from tacit.gradients.isolation.isolate import Installed
from tacit.gradients.layout import Layout, Total, by_example, select_examples
from tacit.gradients.libraries import data_independent
from tacit.gradients.nested import rebuilt, tensors
from tacit.gradients.problems import Problems
from tacit.gradients.recording import COMPARED, Recording
from tacit.gradients.traced import Traced, mark, plain

MOST = 7
"""Examples that are compared: the first of the batch. One half is then even in number and the other odd."""

INFLUENCE = (
    "the model's output for an example changes with the other examples in the batch: somewhere they influence each "
    "other where no operation shows it (through the batch's size, an example's place in it, a number read out, code "
    "outside PyTorch); compute each example's output from that example and constants alone"
)


class FailedOnPart(ValueError):
    """The model accepts the whole batch and fails on some of its examples."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Some examples of the batch, by number, and the model's outputs for them, which know whose their entries are."""

    examples: Sequence[int]
    outputs: Sequence[Tensor]
    penalties: Sequence[Tensor] = ()


def is_influenced(recorder: Recording, args: Any, kwargs: Any) -> bool:
    """Return whether examples influence each other in a model that is given these arguments, which are followed.

    The first examples, at most `MOST`, run together and, in other orders, in two halves, twice: each one's outputs must
    be the same, and sums and means over examples must add up, up to a thousandth. Each run has a copy of the model that
    shares its parameters and has no hooks of other code; dropout and noise stand still. Raises `NotCompared` for one
    that is random otherwise, writes to its parameters (before it does), cannot be copied, or has no output to compare,
    and for inputs in an irregular order; `FailedOnPart` for one that fails on a part and not on the whole batch.
    """
    given = [t._tag for t in tensors((args, kwargs)) if type(t) is Traced and isinstance(t._tag, Layout)]
    if not given or any(tag.owner is not None for tag in given):
        raise NotCompared("its inputs are not rows in the order of the examples")
    failures: list[NotCompared | FailedOnPart] = []
    influenced = False
    for lists in (False, True):  # a list as long as the batch may have a number for each example, or be a setting
        try:
            if not _differ(recorder, args, kwargs, lists):
                return False
            influenced = True
        except (NotCompared, FailedOnPart) as error:
            failures.append(error)
    if influenced:
        return True
    raise failures[0]


def _differ(recorder: Recording, args: Any, kwargs: Any, lists: bool) -> bool:
    def run(examples: Sequence[int], seed: int = 0) -> Part:
        def cut(batch: int, copies: dict[int, Any]) -> Any:
            return Cut(recorder, examples, batch, lists, copies).of((args, kwargs))

        try:
            return _run(recorder, examples, seed, cut)
        except FailedOnPart as error:
            everybody = range(recorder.batch or 0)
            if len(examples) < len(everybody):
                run(everybody)  # if this fails too, the part is not the reason
                raise
            raise NotCompared(f"a copy of it raised {type(error.__cause__).__name__}") from error.__cause__

    several = list(range(min(recorder.batch or 0, MOST)))
    middle = len(several) // 2
    halves = [(several[:middle][::-1], several[middle:][::-1]), (several[1::2], several[::2])]
    together, splits = run(several), [[run(half) for half in split] for split in halves]
    if _agree(together, splits, recorder):
        return False
    again = [[run(several, seed=1)]]
    if not _agree(together, again):
        raise NotCompared("its outputs are random")
    return True


def _run(recorder: Recording, examples: Sequence[int], seed: int, cut: Callable[[int, dict[int, Any]], Any]) -> Part:
    batch = recorder.batch or 0
    copies: dict[int, Any] = {}
    try:
        model = silenced(copied(recorder.model, copies))
    except Exception as error:  # whatever a module raises that cannot be copied
        if isinstance(error, NotCompared):
            raise
        raise NotCompared(f"copying it raised {type(error).__name__}") from error
    try:
        isolated, places = Installed(recorder, model, recorder.plan), storage_places(model)
        with _followed(recorder, len(examples)), seeded(seed), data_independent.paths(), Still(model), isolated:
            args, kwargs = cut(batch, copies)
            advance(copies, seed)
            found = list(outputs_of(model(*args, **kwargs)))
            recorder.problems.check()  # the batch itself will say so; parts of it need not fit what mixes examples
            penalties = recorder.penalties
    except NotCompared:
        raise
    except Exception as error:  # whatever the model's own code raises
        raise FailedOnPart(
            f"the model raised {type(error).__name__} when it was given some examples of the batch by themselves, to "
            "see whether examples influence each other; let it accept any number of them (take sizes from its inputs)"
        ) from error
    if storage_places(model) != places:
        raise NotCompared(WRITES)
    return Part(examples, found, penalties)


@contextmanager
def _followed(recorder: Recording, batch: int) -> Iterator[None]:
    """The engine follows a batch of this many examples, and then the one before again."""
    kept = recorder.batch, recorder.epoch, recorder.problems, recorder.inside, recorder.aliases, recorder.penalties
    recorder.batch, recorder.epoch = batch, COMPARED
    recorder.problems, recorder.inside, recorder.aliases, recorder.penalties = Problems(recorder.model), True, [], []
    recorder.problems.slow = kept[2].slow
    try:
        yield
    finally:
        recorder.batch, recorder.epoch, recorder.problems, recorder.inside, recorder.aliases, recorder.penalties = kept


@dataclasses.dataclass(frozen=True)
class Cut:
    """Cuts some examples out of everything that has a part for each; if `lists`, out of lists of numbers too."""

    recorder: Recording
    examples: Sequence[int]
    batch: int
    lists: bool
    copies: dict[int, Any]
    """Copies made with the model, so that tensors it shares with the arguments are shared again."""

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._rows(value)
        if isinstance(value, (tuple, list)):
            if self._is_listed(value) and not tensors(value) and type(value) in (tuple, list):
                return type(value)(value[i] for i in self.examples)
            return rebuilt(value, [self.of(v) for v in value])
        if isinstance(value, dict):
            pairs = {k: self.of(v) for k, v in value.items()}
            try:
                return type(value)(pairs)
            except TypeError:
                return pairs
        if isinstance(value, np.ndarray) and value.ndim and self._is_listed(value):
            return value[list(self.examples)]
        if isinstance(value, nn.Module):
            return value
        if isinstance(value, Divided):
            return value.taken(self.examples)
        return copy.deepcopy(value, self.copies)  # in which the model may keep something

    def _is_listed(self, value: Any) -> bool:
        return self.lists and len(value) == self.batch

    def _rows(self, value: Tensor) -> Tensor:
        tag = value._tag if type(value) is Traced else None
        if not isinstance(tag, Layout):
            return value
        bare = plain(value).detach()
        places = torch.arange(bare.shape[tag.dim], device=bare.device).view(-1, self.batch, tag.inner)
        rows = bare.index_select(tag.dim, places[:, list(self.examples)].flatten())
        return mark(rows.requires_grad_(value.requires_grad), self.recorder, Layout(tag.dim, tag.inner))


def outputs_of(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Every tensor in a model's output, in order: nested, or attributes of what it returned."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, Mapping)):
        for v in value.values() if isinstance(value, Mapping) else value:
            yield from outputs_of(v, depth)
    elif depth < 2 and hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type, types.FunctionType)):
        for v in vars(value).values():
            yield from outputs_of(v, depth + 1)


def _agree(whole: Part, splits: Sequence[Sequence[Part]], recorder: Recording | None = None) -> bool:
    """Return whether the parts of the examples have the outputs that they have in the whole.

    The recorder learns which outputs are a mean or a sum over examples of losses that keep their scale, whatever
    their number.
    """
    parts = [part for split in splits for part in split]
    if not all(are_equal(whole.penalties, part.penalties) for part in parts):
        return False
    compared = 0
    for i in range(min(len(part.outputs) for part in (whole, *parts))):
        tags = [getattr(part.outputs[i], "_tag", None) for part in (whole, *parts)]
        if all(isinstance(tag, Layout) for tag in tags):
            agreed = all(_rows_agree(whole, part, i) for part in parts)
        elif all(isinstance(tag, Total) for tag in tags):
            kind = _total(whole, splits, i)
            agreed = kind is not None
            if recorder is not None and kind is not None and kind == tags[0].kind:  # type: ignore[union-attr]
                recorder.inferred[i] = kind
        else:
            continue
        compared += 1
        if not agreed:
            return False
    if not compared:
        raise NotCompared("it has no output that belongs to examples")
    return True


def _rows_agree(whole: Part, part: Part, i: int) -> bool:
    def own(of: Part, example: int) -> Tensor:
        t, at = of.outputs[i], of.examples.index(example)
        return select_examples(plain(t).detach(), t._tag, len(of.examples), at, at + 1)  # type: ignore[attr-defined]

    tags: list[Any] = [of.outputs[i]._tag for of in (whole, part)]  # type: ignore[attr-defined]
    if any(tag.owner is not None for tag in tags):
        return all(is_same(own(whole, example), own(part, example)) for example in part.examples)
    rows, others = (
        by_example(plain(of.outputs[i]).detach(), tag, len(of.examples)) for of, tag in zip((whole, part), tags)
    )
    chosen = rows[[whole.examples.index(example) for example in part.examples]]
    return chosen.shape == others.shape and is_same(chosen.flatten(1), others.flatten(1), by_row=True)


def _total(whole: Part, splits: Sequence[Sequence[Part]], i: int) -> str | None:
    """Return how totals of the parts make up the whole's: as means over examples, as sums, or as sums and a constant.

    Sums may have been divided by the number of examples. None if they do not.
    """
    total = plain(whole.outputs[i]).detach()
    each = [[(len(part.examples), plain(part.outputs[i]).detach().double()) for part in split] for split in splits]
    if any(t.shape != total.shape for split in each for _, t in split):
        return None
    means = [torch.stack([n * t for n, t in split]).sum(0) / len(whole.examples) for split in each]
    sums = [torch.stack([t for _, t in split]).sum(0) for split in each]
    if all(is_same(total, mean.to(total.dtype)) for mean in means):
        return "mean"
    if all(is_same(total, summed.to(total.dtype)) for summed in sums):
        return "sum"
    constant = len(sums) > 1 and all(is_same(sums[0].to(total.dtype), other.to(total.dtype)) for other in sums[1:])
    return "constant" if constant else None
