"""Real parameters that are used as complex numbers: norms and clipped sums are those of the naive loop."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients


class Flat:
    def partition(self, shapes):
        return [tuple(shapes)]

    def weights(self, norms):
        return (5.0 / norms).clamp(max=1)


class Uses(nn.Module):
    """A parameter of pairs of real numbers, and a function that uses it as complex numbers."""

    def __init__(self, shape, use):
        super().__init__()
        self.w = nn.Parameter(torch.randn(*shape, 2))
        self.scale = nn.Parameter(torch.randn(3))
        self.use = use

    def forward(self, x):
        out = self.use(x, torch.view_as_complex(self.w))
        out = torch.view_as_real(out).flatten(1) if out.is_complex() else out.flatten(1)
        return out[:, :3] * self.scale + out[:, -3:]


def spectrum(x: Tensor) -> Tensor:
    return torch.fft.rfft(x)  # [5, 4, 8] -> [5, 4, 5]


CASES = {
    "product": ((4, 5), lambda x, w: spectrum(x) * w),
    "product with the conjugate": ((4, 5), lambda x, w: spectrum(x) * w.conj()),
    "shared by channels": ((5,), lambda x, w: spectrum(x) * w),
    "Fourier filter": ((4, 5), lambda x, w: torch.fft.irfft(spectrum(x) * w, n=8)),
    "real data": ((8,), lambda x, w: x * w),
    "sum": ((4, 5), lambda x, w: spectrum(x) + w),
    "quotient": ((4, 5), lambda x, w: spectrum(x) / (w + 3)),
    "matrix": ((5, 3), lambda x, w: spectrum(x) @ w),
    "matrix of one position": ((5, 3), lambda x, w: spectrum(x)[:, 0] @ w),
    "conjugate transpose": ((3, 5), lambda x, w: spectrum(x) @ w.mH),
    "matrix on the left": ((3, 4), lambda x, w: w @ spectrum(x)),
    "linear": ((3, 5), lambda x, w: F.linear(spectrum(x), w)),
    "linear with bias": ((3, 5), lambda x, w: F.linear(spectrum(x), w, w[:, 0])),
    "einsum": ((5, 3), lambda x, w: torch.einsum("bcf,fo->bco", spectrum(x), w)),
    "einsum, a matrix for each frequency": ((4, 3, 5), lambda x, w: torch.einsum("bif,iof->bof", spectrum(x), w)),
    "einsum, permuted": ((5, 3, 4), lambda x, w: torch.einsum("bif,foi->bof", spectrum(x), w)),
    "batched matrices": ((4, 5, 3), lambda x, w: torch.matmul(spectrum(x).unsqueeze(2), w).squeeze(2)),
    "bias of a product": ((4, 4), lambda x, w: torch.baddbmm(w, spectrum(x)[..., :4], w.expand(len(x), 4, 4))),
    "concatenation": ((4, 1), lambda x, w: torch.cat([spectrum(x), w.expand(len(x), 4, 1)], 2)),
    "parts": ((4, 5), lambda x, w: x[..., :5] * w.real + x[..., 3:] * w.imag),
    "absolute values": ((4, 5), lambda x, w: x[..., :5] * w.abs()),
    "angles": ((4, 5), lambda x, w: x[..., :5] * w.angle()),
    "used twice": ((4, 5), lambda x, w: spectrum(x) * w + spectrum(x) * w.square()),
    "used in two forms": ((5, 5), lambda x, w: spectrum(x) @ w + w[0]),
    "a slice": ((4, 9), lambda x, w: spectrum(x) * w[:, ::2]),
    "convolution": ((3, 4, 2), lambda x, w: F.conv1d(spectrum(x), w)),
    "a row for each example's number": ((9, 5), lambda x, w: spectrum(x)[:, 0] * w[(x[:, 0, 0] > 0).long() * 7]),
    "solving": ((5, 5), lambda x, w: torch.linalg.solve(w + 4 * torch.eye(5), spectrum(x).mT)),
}


@pytest.mark.parametrize("case", CASES)
def test_norms_and_sums_are_those_of_the_naive_loop(agree, case):
    shape, use = CASES[case]
    agree(Uses(shape, use), torch.randn(5, 4, 8))


class Filter(nn.Module):
    """A filter that is transformed with the data, as long convolutions are computed."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 8))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x, n=16) * torch.fft.rfft(self.kernel, n=16), n=16)[..., :8]


def test_a_transformed_parameter_keeps_its_whole_gradient(agree):
    agree(Filter(), torch.randn(5, 4, 8))


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return torch.view_as_real(torch.fft.rfft(x) @ (self.weight + 0j)).flatten(1)


def test_a_real_matrix_made_complex_keeps_its_whole_gradient(agree):
    agree(Shifted(), torch.randn(5, 4, 8))


def test_a_purely_imaginary_gradient_has_its_norm():
    class Imaginary(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1, 2))

        def forward(self, x):
            return (x * torch.view_as_complex(self.w)).imag

    model, x = Imaginary(), torch.tensor([[3.0], [30.0]])
    with gradients.record(model) as tape:
        model(x).sum().backward()
    assert torch.allclose(tape.norms(), torch.tensor([3.0, 30.0]))
    assert torch.allclose(tape.clipped_sum(Flat())["w"], torch.tensor([[0.0, 8.0]]))
