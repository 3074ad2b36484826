"""The networks of paper 5."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit.models import shokri

MODELS = {
    "MNIST MLP": (lambda: shokri.mlp(channels=1), 1, 140_106),
    "MNIST CNN": (shokri.mnist_cnn, 1, 105_506),
    "SVHN MLP": (lambda: shokri.mlp(channels=3), 3, 402_250),
    "SVHN CNN": (shokri.svhn_cnn, 3, 313_546),
}


@pytest.mark.parametrize("name", MODELS)
def test_table_3(name: str) -> None:
    build, channels, count = MODELS[name]
    model = build()
    assert sum(p.numel() for p in model.parameters()) == count
    assert sum(v.numel() for v in model.state_dict().values()) == count
    assert model(torch.randn(2, channels, 32, 32)).shape == (2, 10)


def test_the_window_is_not_trained() -> None:
    norm = shokri.SubtractiveNorm()
    assert not list(norm.parameters())
    taps = norm.window[0, 0, 3]
    assert taps.argmax() == 3 and torch.equal(taps, taps.flip(0))
    assert taps[2] / taps[3] == pytest.approx(float(torch.tensor(-0.5 / 1.75**2).exp()))


def test_subtractive_norm_by_hand() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 9, 10, dtype=torch.float64)
    norm = shokri.SubtractiveNorm().double()
    found = norm(x)
    window = norm.window[0, 0]
    for row, column in [(0, 0), (4, 5), (8, 2)]:
        total, weight = torch.zeros(2, dtype=torch.float64), 0.0
        for i in range(7):
            for j in range(7):
                r, c = row + i - 3, column + j - 3
                if 0 <= r < 9 and 0 <= c < 10:
                    total += window[i, j] * x[:, :, r, c].mean(dim=1)
                    weight += float(window[i, j])
        torch.testing.assert_close(found[:, :, row, column], x[:, :, row, column] - (total / weight)[:, None])
    torch.testing.assert_close(norm(torch.ones(1, 4, 9, 9).double()), torch.zeros(1, 4, 9, 9).double())


def test_l2_pool() -> None:
    x = torch.tensor([[[[3.0, 4.0], [0.0, 0.0]]]])
    assert shokri.L2Pool()(x).item() == pytest.approx(2.5)
    zero = torch.zeros(1, 1, 2, 2, requires_grad=True)
    shokri.L2Pool()(zero).sum().backward()
    assert (zero.grad == 0).all()


def test_inputs() -> None:
    digits = torch.full((2, 1, 28, 28), 255, dtype=torch.uint8)
    padded = shokri.inputs(digits)
    assert padded.shape == (2, 1, 32, 32) and padded.dtype == torch.float32
    assert padded.sum() == 2 * 28 * 28 and padded[0, 0, 2, 2] == 1 and padded[0, 0, 1].sum() == 0
    colours = torch.tensor([[255, 255, 255], [255, 0, 0], [0, 0, 255]], dtype=torch.uint8)
    yuv = shokri.inputs(colours.view(3, 3, 1, 1).expand(3, 3, 32, 32))[:, :, 0, 0]
    wanted = torch.tensor([[1.0, 0.0, 0.0], [0.299, -0.14713, 0.615], [0.114, 0.436, -0.10001]])
    torch.testing.assert_close(yuv, wanted, atol=2e-5, rtol=0)
    with pytest.raises(ValueError, match=r"\(2, 2, 32, 32\)"):
        shokri.inputs(torch.zeros(2, 2, 32, 32))


def test_models_are_plain_modules() -> None:
    assert all(isinstance(build(), nn.Sequential) for build, _, _ in MODELS.values())
