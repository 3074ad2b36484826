"""Compare a module run one example at a time with the same module run on all examples together.

Alone and together must give the same outputs up to rounding. If they differ the module mixes examples (contrastive
losses, BatchNorm), and alone it would mean something else: it is refused. That is a question of meaning, not of
privacy: an isolated module cannot mix.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.guard.model_copies import copied, silenced
from tacit.gradients.guard.same_values import is_same
from tacit.gradients.isolation.cutting import Join, agreed, cut
from tacit.gradients.isolation.divided import Divided
from tacit.gradients.isolation.isolate import Arguments, Isolated
from tacit.gradients.isolation.module_state import State
from tacit.gradients.layers.loss_mean import tell_of_own_means
from tacit.gradients.layout import Layout
from tacit.gradients.problems import CannotCut
from tacit.gradients.torch_internals import pytree, without_subclasses
from tacit.gradients.traced import Traced, plain


class Mixes(Exception):
    """A module's output for an example is another one alone than beside others."""


class Compared(Isolated):
    """An isolated module that finds out how its outputs are put together, and whether alone it means the same."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_followed():
            return self.original(*args, **kwargs)
        given = args, kwargs
        self._before = copied(self.module)  # as it is before any example ran
        joins = self._found(given, self.run(given))
        self.joins = (*self.joins, joins)
        return self.put_together(self._outputs, joins)

    def _found(self, given: Arguments, outputs: Sequence[Any]) -> list[Join]:
        """Return how each output is put together."""
        self._outputs = outputs
        batch = self.recorder.batch or 0
        with without_subclasses(), self.recorder.isolation():
            pieces = cut(pytree.tree_map(_detached, given), batch)
            together = self._together(given, range(batch))
            backwards = self._alone(pieces[::-1])[::-1]
            rows = [pytree.tree_flatten(output)[0] for output in outputs]
            if any(len(each) != len(together) for each in (*rows, *backwards)):
                raise CannotCut("its outputs differ in structure from example to example")
            outers = {1} | {_outer(leaf, batch) for leaf in pytree.tree_leaves(given) if type(leaf) is Traced}
            joins = []
            for i, whole in enumerate(together):
                trained = any(isinstance(each[i], Tensor) and each[i].requires_grad for each in rows)
                find = functools.partial(self._join_of, whole, sorted(outers), given, i, trained)
                join, again = find([each[i] for each in rows]), find([each[i] for each in backwards])
                if join != again:
                    raise Mixes("its outputs depend on the order of the examples")
                joins.append(join)
        return joins

    def _join_of(
        self, whole: Any, outers: Sequence[int], given: Arguments, place: int, trained: bool, each: list[Any]
    ) -> Join:
        if not all(isinstance(v, Tensor) for v in (whole, *each)):
            if type(whole).__name__.endswith("Cache"):
                return Join("left out")
            agreed([whole, *each])
            return Join("same")
        bare = [v.detach() for v in each]
        if len({v.shape for v in bare}) > 1:
            raise CannotCut("its outputs for single examples differ in shape")
        if whole.shape == bare[0].shape:
            if not trained and all(is_same(whole, v) for v in bare):
                return Join("same")
            if whole.ndim == 0 and whole.is_floating_point():
                return self._scalar(whole, torch.stack(bare), given, place)
        for dim in range(whole.ndim):
            for outer in outers:
                if whole.shape[dim] != len(bare) * bare[0].shape[dim] or bare[0].shape[dim] % outer:
                    continue
                join = Join("rows", dim, outer)
                joined = join.join(bare)
                if joined.shape == whole.shape and is_same(whole, joined):
                    return join
        raise Mixes("its output for an example is another one alone than beside others")

    def _scalar(self, whole: Tensor, each: Tensor, given: Arguments, place: int) -> Join:
        if is_same(whole, each.mean()):
            return Join("mean")
        if is_same(whole, each.sum()):
            return Join("sum")

        def of(examples: Sequence[int]) -> float:
            return float(self._together(given, examples)[place])

        if is_weighted_mean(each.tolist(), of):
            tell_of_own_means()
            return Join("mean")
        raise Mixes("its loss is no mean or sum of the examples' own losses")

    def _twin(self) -> nn.Module:
        return silenced(copied(self._before))

    def _together(self, given: Arguments, examples: Sequence[int]) -> list[Any]:
        batch = self.recorder.batch or 0
        args, kwargs = pytree.tree_map(lambda leaf: taken(leaf, batch, examples), given)
        return list(pytree.tree_leaves(_freed(self._twin().forward(*args, **kwargs))))

    def _alone(self, pieces: Sequence[Any]) -> list[list[Any]]:
        """Run one example after the other, each with what those before it left in attributes: it must not matter."""
        twin, outputs = self._twin(), []
        with State(twin, attributes=False) as state:
            for args, kwargs in pieces:
                state.begin()
                outputs.append(list(pytree.tree_leaves(_freed(twin.forward(*args, **kwargs)))))
        return outputs


def is_weighted_mean(each: Sequence[float], of: Any, tolerance: float = 1e-3) -> bool:
    """Return whether a loss is a mean of the examples' own losses with weights that each example brings itself.

    So is a mean over all tokens of a batch: L = Σ c_i·ℓ_i / Σ c_i. From the losses of pairs follow the ratios
    c_i / c_j; they must agree with each other and with the loss of three. A loss that compares examples with each
    other is no such mean: alone, a contrastive loss is zero. Two examples show only that the loss is between theirs;
    the plan is made again with the first three.
    """
    scale = max(abs(v) for v in each) or 1.0
    if len(set(each)) == 2:
        (i, a), (j, b) = {value: (place, value) for place, value in enumerate(each)}.values()
        return abs(a - b) > 1e-3 * scale and tolerance < (of([i, j]) - b) / (a - b) < 1 - tolerance
    distinct = next((t for t in itertools.combinations(range(len(each)), 3) if _spread(each, t) > 1e-3 * scale), None)
    if distinct is None:
        return False
    shares = {}
    for i, j in itertools.combinations(distinct, 2):
        share = (of([i, j]) - each[j]) / (each[i] - each[j])
        if not tolerance < share < 1 - tolerance:
            return False
        shares[i, j] = share / (1 - share)
    a, b, c = distinct
    weights = shares[a, c], shares[b, c], 1.0
    expected = sum(w * each[i] for w, i in zip(weights, distinct)) / sum(weights)
    slack = tolerance * scale
    ratio = shares[a, b] * shares[b, c] / shares[a, c]
    return bool(abs(of(list(distinct)) - expected) < slack and abs(ratio - 1) < 0.05)


def _spread(each: Sequence[float], three: tuple[int, int, int]) -> float:
    return min(abs(each[i] - each[j]) for i, j in itertools.combinations(three, 2))


def taken(leaf: Any, batch: int, examples: Sequence[int]) -> Any:
    """Return some examples of a tensor of the batch, without its tag and graph, or of a divided object."""
    if isinstance(leaf, Divided):
        return leaf.taken(examples).whole
    if type(leaf) is not Traced:
        return leaf
    tag = leaf._tag
    if not isinstance(tag, Layout) or tag.owner is not None:
        raise CannotCut("one of its inputs is not made of rows in the order of the examples")
    with without_subclasses():
        bare = plain(leaf).detach()
        places = torch.arange(bare.shape[tag.dim], device=bare.device).view(-1, batch, tag.inner)
        rows: Tensor = bare.index_select(tag.dim, places[:, list(examples)].flatten())
        return rows.requires_grad_(leaf.requires_grad)


def _detached(leaf: Any) -> Any:
    """The same tensor of the batch without its graph, its tag kept."""
    if type(leaf) is not Traced:
        return leaf
    found = plain(leaf).detach().requires_grad_(leaf.requires_grad)
    found.__class__ = Traced
    found._tag = leaf._tag
    return found


def _freed(value: Any) -> Any:
    return pytree.tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, value)


def _outer(leaf: Traced, batch: int) -> int:
    tag = leaf._tag
    return plain(leaf).shape[tag.dim] // (batch * tag.inner) if isinstance(tag, Layout) and tag.owner is None else 1
