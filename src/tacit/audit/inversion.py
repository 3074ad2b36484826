"""Reconstruct a record from the upload of a participant.

Two attacks. *Linear*: the gradient of a linear layer for one record is g xᵀ for its weight and g for its bias, so the
input x can be read off (Aono et al. 2017). *Search*: inputs are changed until their gradient points where the upload
does (Zhu, Liu & Han 2019; the cosine of Geiping et al. 2020). Parameters that were not uploaded are left out of both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SMALLEST = 1e-30


def invert_linear(weight: Tensor, bias: Tensor) -> Tensor:
    """Return the input of a linear layer from the gradients of its weight (out, in) and bias (out).

    NaN stands for entries that were not uploaded. Least squares in x for weight = bias xᵀ, entry by entry over the
    rows that were uploaded: exact for one record, and for several a mean of their inputs. An entry of x without any row
    is zero.
    """
    known = ~(weight.isnan() | bias.isnan()[:, None])
    outer, own = torch.where(known, weight, 0.0), torch.where(known, bias.nan_to_num()[:, None], 0.0)
    weights = own.square().sum(dim=0)
    return torch.where(weights > _SMALLEST, (outer * own).sum(dim=0) / weights.clamp(min=_SMALLEST), 0.0)


def guess_label(bias: Tensor) -> int:
    """Return a record's label from the gradient of the last bias: softmax minus one-hot is negative there alone."""
    return int(torch.where(bias.isnan(), torch.inf, bias).argmin())


def search(
    model: nn.Module,
    upload: Sequence[Tensor],
    *,
    shape: tuple[int, ...],
    label: int,
    steps: int = 300,
    learning_rate: float = 0.1,
    smoothness: float = 1e-3,
    generator: torch.Generator,
) -> Tensor:
    """Return an input of ``shape`` in [0, 1] whose gradient for ``label`` points where ``upload`` does.

    ``upload`` has the gradient of each parameter of ``model`` in their order, NaN where nothing was uploaded.
    """
    known = torch.cat([~part.isnan().reshape(-1) for part in upload])
    wanted = torch.cat([part.reshape(-1) for part in upload])[known]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hidden = torch.randn(1, *shape, generator=generator).mul_(0.1).requires_grad_()
    target = torch.tensor([label])
    optimizer = torch.optim.Adam([hidden], lr=learning_rate)
    for step in range(steps):
        if step == steps * 2 // 3:
            optimizer.param_groups[0]["lr"] = learning_rate / 10
        image = torch.sigmoid(hidden)
        gradients = torch.autograd.grad(F.cross_entropy(model(image), target), parameters, create_graph=True)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])[known]
        loss = 1 - F.cosine_similarity(flat, wanted, dim=0) + smoothness * _roughness(image)
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=[hidden])
        optimizer.step()
    return torch.sigmoid(hidden.detach())[0]


def _roughness(image: Tensor) -> Tensor:
    """Total variation of an image (1, channels, height, width); zero for other shapes."""
    if image.ndim != 4:
        return image.new_zeros(())
    down, across = image.diff(dim=-2), image.diff(dim=-1)
    return down.abs().mean() + across.abs().mean()


def likeness(found: Tensor, real: Tensor) -> float:
    """Return the correlation of two images: 1 is the image up to brightness and contrast, 0 is nothing of it."""
    one, other = (image.double().reshape(-1) - image.double().mean() for image in (found, real))
    return float((one @ other) / (one.norm() * other.norm()).clamp(min=_SMALLEST))
