"""The networks of Shokri & Shmatikov 2015 (Figures 5 to 7), with the parameter counts of its Table 3.

The paper ends each with LogSoftMax; here that is part of the loss, ``F.cross_entropy``. Inputs are 32×32 images, as
`inputs` makes them, normalised with the training set's mean and standard deviation by the training code.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 32
_WINDOW = 7  # Torch7's usual Gaussian: 7 taps, standard deviation a quarter of that
_YUV = (
    (0.299, 0.587, 0.114),
    (-0.14713, -0.28886, 0.436),
    (0.615, -0.51499, -0.10001),
)


def mlp(*, channels: int) -> nn.Sequential:
    """Figure 5: 140,106 parameters for MNIST (one channel), 402,250 for SVHN (three)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * SIDE * SIDE, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def mnist_cnn() -> nn.Sequential:
    """Figure 6: 105,506 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.Tanh(), nn.MaxPool2d(3),
        nn.Conv2d(32, 64, 5), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 200), nn.Tanh(), nn.Linear(200, 10),
    )  # fmt: skip


def svhn_cnn() -> nn.Sequential:
    """Figure 7: 313,546 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.Tanh(), L2Pool(), SubtractiveNorm(),
        nn.Conv2d(64, 64, 5), nn.Tanh(), L2Pool(), SubtractiveNorm(),
        nn.Flatten(), nn.Linear(1600, 128), nn.Tanh(), nn.Linear(128, 10),
    )  # fmt: skip


def inputs(images: Tensor) -> Tensor:
    """Bytes to float32: MNIST scaled to [0, 1] and padded with zeros to 32×32; colours converted to YUV."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or max(images.shape[2:]) > SIDE:
        raise ValueError(f"images have shape {tuple(images.shape)}; it must be (n, 1 or 3, at most {SIDE} a side).")
    values = images.float() / 255
    if values.shape[1] == 3:
        values = torch.einsum("yc,nchw->nyhw", values.new_tensor(_YUV), values)
    down, across = (SIDE - side for side in values.shape[2:])
    return F.pad(values, (across // 2, across - across // 2, down // 2, down - down // 2))


class L2Pool(nn.Module):
    """Pools by the root of the mean square over 2×2 fields."""

    def forward(self, x: Tensor) -> Tensor:
        # The root has no slope at zero; as in Torch7, nothing flows back through a field of zeros.
        return F.avg_pool2d(x * x, 2).clamp(min=1e-12).sqrt()


class SubtractiveNorm(nn.Module):
    """Subtracts a local mean: over all channels, and around each place with a Gaussian window that is not trained.

    At the border the window is cut off and its weights are scaled up, so that a constant image becomes zero.
    """

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        taps = torch.exp(-0.5 * ((torch.arange(_WINDOW) - _WINDOW // 2) / (0.25 * _WINDOW)) ** 2)
        self.register_buffer("window", torch.outer(taps, taps)[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        weights = self._around(self.window.new_ones(1, 1, *x.shape[2:]))
        return x - self._around(x.mean(dim=1, keepdim=True)) / weights

    def _around(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.window, padding=_WINDOW // 2)
