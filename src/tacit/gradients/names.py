"""One name for each operation, however it was called, and what kind of operation it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tacit.gradients.torch_internals import OPERATORS


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALIASES = {
    **{f"{p}{n}": n for p in "ri" for n in ("add", "mul", "and", "or", "xor")},
    **{"isub": "sub", "truediv": "div", "itruediv": "div", "floordiv": "floor_divide", "mod": "remainder"},
    **{"ipow": "pow", "multiply": "mul", "subtract": "sub", "divide": "div", "imatmul": "matmul", "concat": "cat"},
}
_KEPT = words("float int bool long len index complex contains reduce_ex deepcopy repr format hash")

METADATA = words(
    """
    shape dtype device ndim requires_grad is_leaf grad_fn size dim numel nelement stride layout is_nested nbytes
    is_cuda is_sparse is_quantized is_floating_point is_complex is_contiguous __len__ is_same_size
    storage_offset data_ptr element_size _version is_mkldnn is_meta names output_nr is_set_to get_device grad
    _grad _base _backward_hooks retains_grad __set__ sym_size sym_numel sym_stride sym_storage_offset
    """
)
"""Operations that read or write what is known about a tensor, never its values."""

READS = words(
    """
    item tolist numpy equal allclose is_nonzero __bool__ __float__ __int__ __long__ __index__ __complex__ __contains__
    _local_scalar_dense
    """
)
"""Operations that turn a tensor's values into Python values."""

NUMBERS = (bool, int, float, complex)
_TELLING = words("dense_dim sparse_dim can_cast itemsize")

EXPORTS = words("dlpack __reduce_ex__ storage untyped_storage _typed_storage")
"""Operations that hand a tensor's memory or values to code that does not know about examples."""

SHOWN = words("__reduce_ex__ __deepcopy__ __repr__ __format__")
"""Operations that copy or show a tensor as a whole."""

PRINTS = words("__repr__ __format__")
"""Operations that turn a tensor's values into text."""


_IN_PLACE = frozenset(
    f"__{name}__"
    for name in words("setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul")
)


@cache
def writes(func: Callable[..., Any]) -> bool:
    """Return whether an operation changes its first argument in place."""
    name: str = getattr(func, "__name__", str(func)).partition(".")[0]  # `aten.add_.Tensor`
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def tells_no_number(name: str) -> bool:
    """Return whether what an operation says in a Python value is known without a tensor's values."""
    return name in _TELLING or name.startswith(("is_", "_is_", "has_", "__hash"))


@cache
def canonical(func: Callable[..., Any]) -> str:
    """One name for `torch.add`, `Tensor.add_`, `x + y`, `y += x`; another for a custom operator of that name."""
    if isinstance(func, OPERATORS) and not str(func).startswith("aten."):
        return str(func)
    name: str = getattr(func, "__name__", str(func))
    name = name.partition(".")[0]  # `aten.item.default`
    if name == "__get__":
        name = func.__self__.__name__  # type: ignore[attr-defined]
    elif name == "grad":
        return "autograd.grad"  # the function; the attribute of a tensor came by __get__
    if name == "__set__":
        return "__set__"
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name in _KEPT:
            return f"__{name}__"
    elif not name.startswith("_"):
        name = name.rstrip("_")
    name = name.removeprefix("special_")
    return _ALIASES.get(name, name)


POINTWISE = words(
    """
    add sub mul div true_divide floor_divide remainder fmod pow rsub neg negative positive abs absolute exp
    exp2 expm1 log log1p log2 log10 sqrt rsqrt sin cos tan asin acos atan arcsin arccos arctan sinh cosh tanh
    asinh acosh atanh erf erfc erfinv sigmoid logit relu relu6 leaky_relu elu selu celu gelu silu mish softplus
    softshrink hardshrink tanhshrink hardtanh hardsigmoid hardswish threshold log_sigmoid logsigmoid rrelu
    clamp clip clamp_min clamp_max minimum maximum fmin fmax where masked_fill lerp addcmul addcdiv eq ne lt le
    gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not and or
    xor invert isnan isinf isfinite sign sgn floor ceil round trunc frac reciprocal square to type float double
    half bfloat16 int long bool short byte cpu cuda clone contiguous detach dropout alpha_dropout zeros_like
    ones_like rand_like randn_like full_like empty_like bernoulli nan_to_num copy zero fill type_as
    requires_grad xlogy hypot atan2 heaviside copysign logaddexp logaddexp2 lgamma digamma sinc isclose data
    uniform normal exponential poisson binomial _standard_gamma
    conj real imag angle softsign pin_memory alias signbit float_power not_equal
    greater greater_equal less less_equal new_zeros_like native_dropout retain_grad
    polar complex erfcx i0 igamma igammac polygamma mvlgamma ldexp deg2rad rad2deg nextafter arctan2 arcsinh
    arccosh arctanh isposinf isneginf expit entr ndtr log_ndtr
    """
)
"""Operations whose output entry depends on the entries at the same (broadcast) position only."""
