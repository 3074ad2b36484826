"""Batches that are one object, or a list with an entry for each example, divided into one object for each example.

Graphs are batched into one list of nodes: no dimension of a tensor belongs to the examples. Such a batch is divided by
its own class (`torch_geometric` batches know how) or by a function of the user's, and the model runs one example at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Split = Callable[[Any], Sequence[Any]]
"""Divides an argument of the model that is one object for the whole batch into one object for each example."""


@dataclass(frozen=True)
class Divided:
    """An argument that is one object for the whole batch, and its examples."""

    whole: Any
    parts: Sequence[Any]
    mergeable: bool

    def taken(self, examples: Sequence[int]) -> Divided:
        """Return some of the examples; the whole must be mergeable, or they must be all in their order."""
        if list(examples) == list(range(len(self.parts))):
            return self
        if not self.mergeable:
            raise ValueError("a batch that is one object cannot be put together from some of its examples")
        parts = [self.parts[i] for i in examples]
        if isinstance(self.whole, (tuple, list)):
            return Divided(type(self.whole)(part[0] for part in parts), parts, True)
        graphs = [graph for part in parts for graph in part.to_data_list()]
        return Divided(type(self.whole).from_data_list(graphs), parts, True)


def divided(value: Any, split: Split | None) -> Divided | None:
    """Return the examples of an object; None if it is not a batch of examples."""
    graphs = callable(getattr(value, "to_data_list", None)) and callable(getattr(value, "from_data_list", None))
    if split is not None:
        return Divided(value, list(split(value)), mergeable=False)
    if not graphs:
        return None
    return Divided(value, [type(value).from_data_list([one]) for one in value.to_data_list()], mergeable=True)
