"""`validate` lists the problems of a model with private training; `fix` replaces layers that have a counterpart."""

from __future__ import annotations

import logging
import math
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from tacit.gradients.check import check
from tacit.gradients.engine import record
from tacit.gradients.guard.model_copies import copied
from tacit.gradients.guard.standing_still import seeded
from tacit.gradients.layout import Mixed
from tacit.gradients.nested import tensors
from tacit.gradients.problems import module_problems
from tacit.training.arithmetic import exact_arithmetic
from tacit.training.batch_norm import private_batch_norm
from tacit.training.wrappers import unwrapped

log = logging.getLogger("tacit")

_GROUPS, _CHANNELS = 32, 4
"""Groups, at most (Wu & He 2018), and channels of one, at least: of a single value minus its mean nothing is left."""


def validate(model: nn.Module, *args: Any, batch_dim: Any = 0, **kwargs: Any) -> list[str]:
    """Return a sentence for each problem of ``model`` with private training, in training mode; [] if there is none.

    If you give arguments of the model (a batch of about eight examples), `validate` also runs a copy of the model once
    and follows every operation, to find operations that mix examples. Give made-up or public examples, because the
    sentences may quote their shapes. The model does not change.

    >>> import torch
    >>> validate(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))  # doctest: +ELLIPSIS
    ['1 (BatchNorm1d) normalises with statistics of the whole batch: replace it by nn.GroupNorm or ...']
    >>> validate(nn.Linear(4, 3), torch.randn(8, 4))
    []
    """
    problems: list[str] = []
    try:
        inner, _ = unwrapped(model)
    except ValueError as error:
        problems.append(str(error))
        wrapped = getattr(model, "module", None)
        inner = wrapped if isinstance(wrapped, nn.Module) else model
    lazy = [name for name, parameter in inner.named_parameters() if isinstance(parameter, UninitializedParameter)]
    if lazy:
        shapeless = f"{', '.join(lazy)} has no shape yet: run the model on a batch once, before its optimizer is made"
        return [*problems, shapeless]
    try:
        twin = copied(inner)
    except Exception as error:  # whatever a model that cannot be copied raises
        return [
            *problems,
            *module_problems(inner),
            f"the model cannot be copied ({type(error).__name__}), so validate cannot run it",
        ]
    if not twin.training:
        twin.train()  # the modules' own modes say nothing where all are in evaluation mode
    problems += dict.fromkeys([*module_problems(inner), *module_problems(twin)])
    if not any(parameter.requires_grad for parameter in twin.parameters()):
        problems.append("the model has no trainable parameter: call requires_grad_(True) on those to train")
    try:
        with exact_arithmetic(twin):
            if args or kwargs:
                problems += _problems_of_running(twin, args, kwargs, batch_dim)
    except ValueError as error:
        problems.append(str(error))
    return problems


def _problems_of_running(twin: nn.Module, args: Any, kwargs: Any, batch_dim: Any) -> list[str]:
    """Run a fixed copy of the model on a batch, to find further problems."""
    if module_problems(twin):
        _replace(twin, "group")
    if module_problems(twin) or not any(parameter.requires_grad for parameter in twin.parameters()):
        return []  # nothing can be followed
    try:
        check(twin, *args, batch_dim=batch_dim, **kwargs)
        with seeded(0), record(twin, batch_dim=batch_dim):
            tags = [getattr(each, "_tag", None) for each in tensors(twin(*args, **kwargs))]
    except ValueError as error:
        first, *listed = str(error).splitlines()
        return [line.removeprefix("  - ") for line in listed] or [first]
    mixed = [f"an output depends on several examples: {tag.reason}" for tag in tags if isinstance(tag, Mixed)]
    return list(dict.fromkeys(mixed))


def fix(model: nn.Module, *, batch_norm: Literal["group", "private"] = "group") -> list[str]:
    """Replace layers that have a counterpart for private training, in place; return a sentence for each.

    * Batch normalisation becomes `nn.GroupNorm`, which costs no privacy, or with ``batch_norm="private"``
      `tacit.training.PrivateBatchNorm`, which keeps statistics of pre-training and releases new ones with noise.
      Weights and biases stay the same objects, so that an optimizer made before still holds them.
    * Instance normalisation keeps no running statistics; embeddings lose ``max_norm`` and ``scale_grad_by_freq``.

    Change the problems that `validate` still lists afterwards yourself. Layers in evaluation mode inside a model in
    training mode stay: they use fixed statistics.
    """
    if batch_norm not in ("group", "private"):
        raise ValueError(f"batch_norm is {batch_norm!r}; choose 'group' or 'private'.")
    done = _replace(model, batch_norm)
    for sentence in done:
        log.info("%s", sentence)
    return done


def _replace(model: nn.Module, batch_norm: str) -> list[str]:
    done: list[str] = []
    for name, module in list(model.named_modules()):
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
            done.append(f"{name} ({type(module).__name__}): normalises by each example's statistics in evaluation too")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            if module.max_norm is not None:
                module.max_norm = None
                done.append(f"{name} ({type(module).__name__}): max_norm is left out")
            if module.scale_grad_by_freq:
                module.scale_grad_by_freq = False
                done.append(f"{name} ({type(module).__name__}): scale_grad_by_freq is left out")
    made: dict[nn.Module, nn.Module] = {}  # a layer used in several places stays one layer
    for path, parent in list(model.named_modules()):
        for name, child in list(parent._modules.items()):
            where = f"{path}.{name}".lstrip(".")
            if child is None:
                continue
            if child not in made:
                new, said = _counterpart(child, batch_norm, model.training)
                made[child] = new
                if said:
                    done.append(f"{where} ({type(child).__name__}): {said}")
            if made[child] is not child:
                setattr(parent, name, made[child])
    return done


def _counterpart(child: nn.Module, batch_norm: str, training: bool) -> tuple[nn.Module, str]:
    """Return the replacement of a module, or the module itself, and a sentence about it."""
    mixing = child.training or not training or not getattr(child, "track_running_stats", True)
    if not isinstance(child, _BatchNorm) or not mixing or not child.num_features:
        return child, ""
    lost = child.running_mean is not None and bool(child.running_mean.any())
    if batch_norm == "private":
        holder = nn.Sequential(child)
        if not private_batch_norm(holder):
            return child, ""
        _share(holder[0], child)
        said = "is replaced by PrivateBatchNorm, whose statistics are released with noise in every step"
        return holder[0], said + ("; those it has are kept, and must be of public data" if lost else "")
    own_forward = type(child).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    follows = [m for m in map(child._modules.get, ("drop", "act")) if m is not None]  # as in timm's BatchNormAct2d
    if own_forward and not (follows and type(child).__module__.startswith("timm.")):
        return child, "has a forward of its own, which a replacement would lose; replace it by hand"
    groups = _groups(child)
    new = nn.GroupNorm(groups, child.num_features, eps=child.eps, affine=child.affine)
    like = child.weight if child.weight is not None else child.running_mean
    if like is not None:
        new.to(like.device, like.dtype)
    _share(new, child)
    said = f"is replaced by GroupNorm of {groups} groups"
    if lost:
        said += "; the statistics it had are lost (tacit.fix(model, batch_norm='private') keeps them)"
    return (nn.Sequential(new, *follows) if own_forward else new).train(child.training), said


def _groups(child: _BatchNorm) -> int:
    """Return how many groups the channels are normalised in; after `nn.Linear`, where there are no pixels, one."""
    if isinstance(child, nn.BatchNorm1d):
        return 1
    groups = math.gcd(child.num_features, _GROUPS)
    while groups > 1 and child.num_features // groups < _CHANNELS:
        groups //= 2
    return groups


def _share(new: nn.Module, old: _BatchNorm) -> None:
    """Let the new layer have the parameters of the old one, which an optimizer may hold."""
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
