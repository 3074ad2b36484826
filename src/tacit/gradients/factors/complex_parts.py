"""Gradients with respect to complex tensors as gradients with respect to their real and imaginary parts.

A real parameter can be used as complex numbers: `torch.view_as_complex(w)`, `torch.fft.rfft(w)`, `w + 0j`. PyTorch's
gradient of a real loss with respect to z = x + iy is ∂L/∂x + i·∂L/∂y. With respect to `torch.view_as_real(z)` it is
therefore the same numbers as pairs, of the same norm, and from there on everything is real: measured, clipped and
followed back to the parameter without a change of type in which an imaginary part could be lost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.gradients.factors.contribution import Contribution, Dense, Piecewise
from tacit.gradients.factors.outer import Outer


def real(t: Tensor) -> Tensor:
    """Return a complex tensor's memory as pairs of real numbers, and a real tensor as it is."""
    return torch.view_as_real(t.detach()) if t.is_complex() else t


def real_parts(source: Tensor, contribution: Contribution) -> tuple[Tensor, Contribution]:
    """Return the complex ``source`` as pairs of real numbers, connected to its parameters, and its gradients so."""
    with torch.enable_grad():
        pairs = torch.view_as_real(source.resolve_conj())
    if type(contribution) is Dense:
        return pairs, Dense(torch.view_as_real(contribution.grads.resolve_conj()))
    if type(contribution) is Outer:
        return pairs, _outer(contribution)
    return pairs, RealParts(contribution)


def _outer(complex_: Outer) -> Outer:
    """Σ_t g_t ⊗ a_t of complex factors as a sum of twice as many real products, real and imaginary parts side by side.

    (g' + ig'')·(a' + ia'') = g'·(a', a'') + g''·(-a'', a'), each pair (real part, imaginary part).
    """
    a, g = complex_.a, complex_.g
    batch, blocks, positions, width = a.shape
    right = torch.stack([torch.view_as_real(a.resolve_conj()), torch.view_as_real((1j * a).resolve_conj())], 3)
    left = torch.stack([g.real, g.imag], 3)
    order = (*complex_.order, len(complex_.order)) if complex_.order else ()
    return Outer(
        right.reshape(batch, blocks, 2 * positions, 2 * width),
        left.reshape(batch, blocks, 2 * positions, complex_.width_out),
        (*complex_.shape, 2),
        (*complex_.sizes, 2) if complex_.order else (),
        order,
    )


class RealParts(Piecewise):
    """Any other complex gradients, formed a few at a time and then taken apart."""

    def __init__(self, inner: Contribution) -> None:
        self.inner = inner
        self.shape, self.batch = torch.Size((*inner.shape, 2)), inner.batch

    def instantiate(self, lo: int, hi: int) -> Tensor:
        return torch.view_as_real(self.inner.instantiate(lo, hi).resolve_conj())

    def alone(self, i: int) -> Tensor:
        return torch.view_as_real(self.inner.alone(i).resolve_conj())

    def without(self, bad: Tensor) -> RealParts:
        return RealParts(self.inner.without(bad))
