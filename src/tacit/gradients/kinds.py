"""Kinds of functions, decided once for each function, before its arguments are looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.nn import functional as F

from tacit.gradients.names import EXPORTS, METADATA, POINTWISE, READS, SHOWN, canonical, words, writes
from tacit.gradients.remembered import BY_SHAPES, REMEMBERED
from tacit.gradients.traced import opened

_SIMPLE = frozenset((F.relu, F.relu6, F.silu, F.mish, F.selu, F.elu, F.celu, F.leaky_relu, F.hardswish, F.dropout))
"""Functions of single entries that call one operation of the same name: nothing is seen by running their bodies."""

_ENTRYWISE = words(
    """
    add sub mul div true_divide rsub pow neg abs exp expm1 log log1p log2 sqrt rsqrt sin cos tanh erf sigmoid relu relu6
    leaky_relu elu selu celu gelu silu mish softplus hardtanh hardsigmoid hardswish log_sigmoid clamp clamp_min
    clamp_max minimum maximum masked_fill eq ne lt le gt ge logical_and logical_not logical_or logical_xor and or xor
    invert bitwise_and bitwise_or bitwise_not isnan isinf reciprocal square sign floor round long int bool float double
    half bfloat16 clone dropout where
    """
)
"""Operations of `POINTWISE` that numbers among their arguments change nothing about, nor the same tensor twice."""


_SIZED = words("getitem expand narrow select")
_DIRECT = words(
    "linear addmm embedding layer_norm rms_norm group_norm conv1d conv2d conv3d add sub mul div true_divide"
)
_OPENED = words("layer_norm rms_norm group_norm")
_NOT_TOLD = words("grad _grad _base __set__ is_same_size is_set_to")
"""Metadata that are tensors, that are written, or that are of two tensors."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A function that PyTorch shows to tensors of the batch."""

    name: str
    """One name for all functions that compute the same (`names.canonical`)."""
    is_metadata: bool
    is_special: bool
    """True if it copies, shows or reads values, or works on lists of tensors in place."""
    is_pointwise: bool
    tells: bool
    """True if it tells what is known of one tensor without its values, and nothing else."""
    writes: bool
    """True if it changes its first argument in place."""
    is_simple: bool
    """True if running its body would show nothing, given one argument."""
    is_direct: bool
    """True if it has a gradient rule for one tensor of the batch and parameters, which is remembered."""
    body: Callable[..., Any] | None
    """The function with its own override check removed, so that its inner operations are seen (`traced.opened`)."""


_KINDS: dict[Callable[..., Any], Kind] = {}
known = _KINDS.get

FLAGS: dict[Callable[..., Any], int] = {}
"""Answers for the short way, where it has a question (`_calls/premises.h`).

1: a decision is remembered; 2: neither numbers nor one tensor given twice matter for it; 4: it depends on shapes alone,
of other tensors too; 8: a second tensor of the batch may decide a size; 16: it tells what is known of one tensor;
32: its gradient rule is remembered; 64: the entries of constant indices count.
"""


def kind_of(func: Callable[..., Any]) -> Kind:
    """Return a function's kind, and remember it for `known`."""
    name = canonical(func)
    found = Kind(
        name=name,
        is_metadata=name in METADATA,
        is_special=name in EXPORTS | SHOWN | READS or name == "detach" or name.startswith("_foreach_"),
        is_pointwise=name in POINTWISE,
        tells=name in METADATA - _NOT_TOLD,
        writes=writes(func) or name == "__set__",
        is_simple=func in _SIMPLE,
        is_direct=name in _DIRECT and not writes(func) and (opened(func) is None or name in _OPENED),
        body=opened(func),
    )
    _KINDS[func] = found
    decided = (name in _ENTRYWISE or name in REMEMBERED) and not writes(func)
    if found.tells or (found.is_direct and not decided):
        FLAGS[func] = 16 if found.tells else 32
    elif decided:
        kinds = (name in _ENTRYWISE, name in BY_SHAPES, name in _SIZED)
        FLAGS[func] = 1 + 2 * kinds[0] + 4 * kinds[1] + 8 * kinds[2] + 64 * (name == "getitem")
    return found
