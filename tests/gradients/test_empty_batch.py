"""An empty batch, as a lot with nobody in it is: code that PyTorch cannot run on nothing runs all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tacit import gradients


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


def packed(m: Any, x: Tensor) -> Tensor:
    """The mean of the states of sequences of one to three steps."""
    lengths = (x[:, 0, 0] > 0).long() + 2
    out, _ = m.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(out, batch_first=True, total_length=3)[0].mean(1)


OPERATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Fourier transform": lambda m, x: torch.fft.irfft(torch.fft.rfft(m.first(x), dim=1), n=3, dim=1).mean(1),
    "spectrum": lambda m, x: (
        torch.stft(m.first(x).flatten(1), 4, window=torch.ones(4), return_complex=True)
        .abs()
        .mean(2)
        .repeat(1, 2)[:, :4]
    ),
    "custom function": lambda m, x: Doubled.apply(m.first(x)).mean(1),
    "packed sequences": packed,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_empty_batch_gives_a_zero_sum(name: str, flat: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.lstm, self.head = nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(OPERATIONS[name](self, x))

    engine = gradients.attach(model := Net())
    for size in (3, 0, 3):
        model(torch.randn(size, 3, 4)).square().sum(1).mean().backward()
        assert engine.norms().shape == (size,)
        total = engine.clipped_sum(flat(1.0))
        assert set(total) == {n for n, _ in model.named_parameters()}
        assert all(bool(t.any()) == (size > 0) for n, t in total.items() if n.startswith("head"))
    engine.detach()
