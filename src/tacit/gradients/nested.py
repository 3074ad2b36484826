"""Tensors inside tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def tensors(value: Any) -> list[Tensor]:
    """Every tensor in a nested value, in order."""
    found, left = list[Tensor](), [value]
    while left:
        each = left.pop()
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, (tuple, list)):
            left.extend(reversed(each))
        elif isinstance(each, dict):
            left.extend(reversed(each.values()))
    return found


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same nested value with every tensor replaced by `function` of it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        return rebuilt(value, [mapped(v, function) for v in value])
    if isinstance(value, dict):
        return {k: mapped(v, function) for k, v in value.items()}
    return value


def rebuilt(like: tuple[Any, ...] | list[Any], values: list[Any]) -> Any:
    """A tuple, named tuple or list of the same type, with other values."""
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)


def replaced(value: Any, table: Mapping[int, Tensor]) -> Any:
    """The same nested value with the tensors in `table` (by identity) exchanged."""
    return mapped(value, lambda t: table.get(id(t), t))


def detached(value: Any, only: list[Tensor]) -> Any:
    """The same nested value with the tensors of `only` cut off from the graph."""
    return mapped(value, lambda t: t.detach() if t.requires_grad and any(t is o for o in only) else t)
