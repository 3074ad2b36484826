"""Models of images and series in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case
from zoo_models.plain import classify, pictures, plain, series


@plain("conv-net")
def conv_net() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=2), nn.PReLU(),
        nn.InstanceNorm2d(8, affine=True), nn.Flatten(), nn.Linear(72, 3),
    )  # fmt: skip
    return Case(model, pictures, classify)


@plain("u-net")
def u_net() -> Case:
    """Skip connections, transposed convolutions, a Dice loss for each example."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.low = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)
            self.up, self.out = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(16, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            a = self.down(x).relu()
            return self.out(torch.cat([a, self.up(self.low(a).relu())], 1))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        p, y = model(batch[0]).sigmoid().flatten(1), batch[1].flatten(1)
        return (1 - (2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)).mean()

    def batch(size: int, generator: torch.Generator) -> Batch:
        x, _ = pictures(size, generator)
        return x, (torch.rand(size, 1, 12, 12, generator=generator) < 0.3).float()

    return Case(Model(), batch, loss)


@plain("spatial-transformer")
def spatial_transformer() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.locate, self.conv, self.head = nn.Linear(432, 6), nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
            self.register_buffer("identity", torch.tensor([1.0, 0, 0, 0, 1, 0]))

        def forward(self, x: Tensor) -> Tensor:
            theta = (0.1 * self.locate(x.flatten(1)) + self.identity).view(-1, 2, 3)
            grid = F.affine_grid(theta, list(x.shape), align_corners=False)
            return self.head(self.conv(F.grid_sample(x, grid, align_corners=False)).relu().mean((2, 3)))

    return Case(Model(), pictures, classify)


@plain("super-resolution")
def super_resolution() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        big = F.interpolate(batch[0], scale_factor=2, mode="bilinear", align_corners=False)
        return F.l1_loss(model(batch[0]) + big, big.roll(1, 2))

    return Case(model, pictures, loss)


@plain("fourier-operator")
def fourier_operator() -> Case:
    """A Fourier layer with complex parameters (Li et al.)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.head = nn.Linear(1, 6), nn.Linear(6, 1)
            self.filter = nn.Parameter(torch.randn(6, 6, 4, dtype=torch.cfloat) / 6)

        def forward(self, x: Tensor) -> Tensor:
            h = self.lift(x).mT
            low = torch.einsum("bik,iok->bok", torch.fft.rfft(h)[:, :, :4], self.filter)
            return self.head((torch.fft.irfft(low, n=h.shape[2]) + h).mT.tanh())

    return Case(Model(), series, lambda m, b: F.mse_loss(m(b[0]), b[1]))


@plain("fourier-filter-real")
def fourier_filter() -> Case:
    """GFNet: a learned filter in frequencies, stored as real and imaginary parts."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter, self.head = nn.Parameter(torch.randn(12, 7, 3, 2) * 0.2), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            spectrum = torch.fft.rfft2(x.permute(0, 2, 3, 1), dim=(1, 2), norm="ortho")
            filtered = spectrum * torch.view_as_complex(self.filter)
            h = torch.fft.irfft2(filtered, s=(12, 12), dim=(1, 2), norm="ortho")
            return self.head(h.square().mean((1, 2)))

    return Case(Model(), pictures, classify)
