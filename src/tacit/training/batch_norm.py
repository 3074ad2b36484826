"""Batch normalisation without mixing examples: the statistics are private releases.

Ordinary batch normalisation divides an example's activations by statistics of the *other* examples, so each example's
gradient depends on all of them. This layer uses statistics that earlier steps released. Each step releases an update
from the same sample as the gradients, charged to the same ledger (McMahan, Andrew et al. 2019).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.layout import Layout
from tacit.gradients.traced import Traced
from tacit.training.tally import Tally

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class PrivateBatchNorm(nn.Module):
    """Normalises channels by running statistics; parameters and buffers have the names of `torch.nn.BatchNorm2d`.

    One record contributes, for each channel, the distance of its own mean and mean square (over positions) from the
    running ones, in running deviations: 2C numbers, clipped together to norm sqrt(2C) · ``bound``.
    """

    def __init__(
        self,
        channels: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        bound: float = 1.0,
        noise_multiplier: float | None = None,
    ) -> None:
        super().__init__()
        if not 0 < bound < math.inf:
            raise ValueError(f"bound is {bound!r}; it must be a finite number above 0.")
        self.channels, self.eps, self.momentum, self.bound = channels, eps, momentum, bound
        self.noise_multiplier = noise_multiplier
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    running_mean: Tensor
    running_var: Tensor
    _rows: list[Tensor] | None = None
    """The records' exact statistics. They exist from `expect` to `collect` or `forget` only, and in no copy or
    pickle."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the records' statistics, for `copy`, `pickle` and `torch.save`."""
        state: Any = super().__getstate__()  # type: ignore[no-untyped-call]
        return {name: value for name, value in state.items() if name != "_rows"}

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"the input of batch normalisation has {x.ndim} dimensions; the records must be in dimension 0, and "
                f"dimension 1 must have {self.channels} channels."
            )
        along = (1, self.channels, *[1] * (x.ndim - 2))
        scale = (self.running_var + self.eps).rsqrt()
        normal = (x - self.running_mean.view(along)) * scale.view(along)
        if self._rows is not None and self.training and torch.is_grad_enabled() and isinstance(x, Traced):
            if not isinstance(x._tag, Layout) or x._tag.dim != 0 or x._tag.owner is not None:
                raise ValueError(
                    f"the input of batch normalisation, of {x.ndim} dimensions, does not have one record in each row; "
                    "put the records in dimension 0."
                )
            self._rows.append(_moments(normal))
        if self.weight is None or self.bias is None:
            return normal
        return normal * self.weight.view(along) + self.bias.view(along)

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}, momentum={self.momentum}, bound={self.bound}"

    def tally(self, group: str, step_noise: float | None, contributions: int, *, discrete: bool = False) -> Tally:
        """Return an empty sum of this layer's statistics for one lot."""
        return Tally(
            group,
            bound=self.bound * math.sqrt(2 * self.channels),
            noise_multiplier=self.noise_multiplier,
            step_noise=step_noise,
            contributions=contributions,
            shape=(2, self.channels),
            discrete=discrete,
        )

    def expect(self) -> None:
        """Keep the statistics of the next batch's records until they are collected."""
        self._rows = []

    def forget(self) -> None:
        """Drop the records' statistics, and keep no further ones."""
        self._rows = None

    def collect(self, batch: int) -> Tensor:
        """Return one row of statistics for each record of the batch; of a layer used twice in a forward pass,
        averages."""
        rows = self._rows or []
        self.forget()
        for row in rows:
            if len(row) != batch:
                raise ValueError(
                    "the input of batch normalisation does not have one row for each record of the batch; the bound "
                    f"is for rows, so keep other dimensions behind the {self.channels} channels."
                )
        if not rows:
            return self.running_mean.new_zeros(0, 2, self.channels)
        return torch.stack(rows).mean(dim=0)

    def update(self, means: Tensor) -> None:
        """Move the running statistics by the released means of (z, z² - 1), z in running deviations."""
        mean, excess = means.to(self.running_mean)
        var = self.running_var + self.eps
        self.running_mean += self.momentum * mean * var.sqrt()
        # Noise must not make a variance negative or let it collapse at once.
        self.running_var *= (1 + self.momentum * (excess - mean.square())).clamp(0.5, 2.0)


def _moments(normal: Tensor) -> Tensor:
    """Return for each record and channel the means of z and of z² - 1 over positions."""
    flat = normal.detach().flatten(2) if normal.ndim > 2 else normal.detach()[..., None]
    return torch.stack([flat.mean(dim=2), flat.square().mean(dim=2) - 1], dim=1).as_subclass(Tensor)


def private_batch_norm(model: nn.Module, *, bound: float = 1.0, noise_multiplier: float | None = None) -> int:
    """Replace every batch normalisation of ``model`` in place, and return their number.

    The new layers keep weights and statistics. The statistics must come from public data or from no training at all.
    """
    made: dict[nn.Module, PrivateBatchNorm] = {}  # a layer used in several places stays one layer
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _BATCH_NORMS):
                if child not in made:
                    made[child] = _replacement(child, bound, noise_multiplier)
                setattr(parent, name, made[child])
    return len(made)


def _replacement(old: nn.Module, bound: float, noise_multiplier: float | None) -> PrivateBatchNorm:
    assert isinstance(old, _BATCH_NORMS)
    new = PrivateBatchNorm(
        old.num_features,
        eps=old.eps,
        momentum=0.1 if old.momentum is None else old.momentum,
        affine=old.affine,
        bound=bound,
        noise_multiplier=noise_multiplier,
    )
    state = {key: value for key, value in old.state_dict().items() if key != "num_batches_tracked"}
    if state:
        like = next(iter(state.values()))
        new.to(like.device, like.dtype)
    new.load_state_dict(state, strict=False)
    for mine, theirs in ((new.weight, old.weight), (new.bias, old.bias)):
        if mine is not None and theirs is not None:
            mine.requires_grad_(theirs.requires_grad)
    return new.train(old.training)
