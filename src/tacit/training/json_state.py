"""Turn the state of foreign objects into JSON and tensors, for a checkpoint.

Numbers, text, None, lists, tuples, dictionaries, counters and tensors come back as they were. `pack` refuses other
values and names them. There is no pickle, and a checkpoint can contain no other kinds of values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor


class Stateful(Protocol):
    """An object with ``state_dict`` and ``load_state_dict`` of plain values: a scheduler, an average of weights."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


def pack(value: Any, name: str, tensors: dict[str, Tensor], together: Callable[[Tensor], Tensor]) -> Any:
    """``value`` for JSON; its tensors are put into ``tensors``, under names that begin with ``name``, each ``together``
    with what other processes hold of it.
    """
    if isinstance(value, Tensor):
        tensors[name] = together(value.detach()).clone().contiguous()
        return {"tensor": name}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}  # JSON has no infinity
    if type(value) in (list, tuple):
        items = [pack(item, f"{name}/{index}", tensors, together) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):  # as pairs, for JSON makes text of keys that are numbers
        pairs = [
            [pack(key, f"{name} key {key!r}", tensors, together), pack(item, f"{name}/{key}", tensors, together)]
            for key, item in value.items()
        ]
        return {"counter" if isinstance(value, Counter) else "dict": pairs}
    raise ValueError(
        f"{name} is a {type(value).__name__}; a checkpoint holds numbers, text, tensors, and lists and dictionaries of "
        "these."
    )


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what `pack` was given. A `ValueError`, `KeyError` or `TypeError` if it cannot have written ``value``."""
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(unpack(item, tensors) for item in content)
    if kind in ("dict", "counter"):
        pairs = {unpack(key, tensors): unpack(item, tensors) for key, item in content}
        return pairs if kind == "dict" else Counter(pairs)
    raise ValueError(f"{kind!r} is not a kind of value that a checkpoint holds.")
