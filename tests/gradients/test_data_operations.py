"""Operations on data between trainable layers: the engine must know, or find out, where the examples went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 4


class Between(nn.Module):
    """linear → function → linear over whatever it returns (examples first)."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.scale, self.function = nn.Linear(6, 6), nn.Parameter(torch.randn(())), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x)).flatten(1) * self.scale


def attention(h: Tensor) -> Tensor:
    scores = torch.bmm(h, h.transpose(1, 2)) / 3
    mask = torch.ones(h.shape[1], h.shape[1]).tril().bool()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ h


def routing(h: Tensor) -> Tensor:
    """Dynamic routing by agreement, as in capsule networks."""
    logits = torch.zeros(h.shape[:2], dtype=h.dtype)
    for _ in range(3):
        capsule = (logits.softmax(1).unsqueeze(-1) * h).sum(1)
        logits = logits + (h * capsule.unsqueeze(1)).sum(-1)
    return capsule


def filled(h: Tensor) -> Tensor:
    out = torch.zeros(h.shape[0], 2, 6, dtype=h.dtype)
    out[:, 0] = h[:, 0]
    out[:, 1] += h.sum(1)
    return out


def gathered(h: Tensor) -> Tensor:
    best = h.detach().argmax(-1, keepdim=True)
    steps = (
        torch.linspace(0, 1, 6, dtype=h.dtype).gather(-1, best[:, 0, 0]).view(-1, 1, 1)
    )  # a constant for each example
    return torch.cat([h.gather(-1, best), h.take_along_dim(best, -1), h.scatter(-1, best, 0.0) + steps], -1)


def masked_scattered(h: Tensor) -> Tensor:
    """Features take the places that each example's own values choose, as images do in the text of a language model."""
    chosen = h.detach()[..., 0].argsort(1) < 1
    features = torch.cat(list(h.sum(1, keepdim=True).tanh()))
    return h.masked_scatter(chosen.unsqueeze(-1), features)


def nearest(h: Tensor, shift: int = 0) -> Tensor:
    """Edges to the nearest points of each cloud, picked out of one list of the points of all."""
    near = (-torch.cdist(h, h)).topk(2, dim=-1)[1]
    start = (torch.arange(len(h)) + shift).remainder(len(h)).view(-1, 1, 1) * h.shape[1]
    found = h.reshape(-1, 6)[(near + start).view(-1)].view(*h.shape[:2], 2, 6)
    everywhere = torch.arange(len(h)).view(-1, 1, 1).expand(-1, h.shape[1], 2)
    return found - h.unsqueeze(2) + h[everywhere, near]


def images(h: Tensor) -> Tensor:
    return h.unflatten(-1, (2, 3)).unsqueeze(1)


TRIANGLE = torch.eye(6, dtype=torch.float64) + torch.ones(6, 6, dtype=torch.float64).tril(-1)

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention": attention,
    "routing": routing,
    "filled": filled,
    "gathered": gathered,
    "softmax over time": lambda h: h.softmax(1),
    "maximum": lambda h: h.max(1).values,
    "topk": lambda h: h.topk(2, -1).values,
    "sort": lambda h: h.sort(-1, descending=True)[0],
    "cumulative": lambda h: h.cumsum(1) + h.logcumsumexp(2),
    "variance": lambda h: torch.cat([h.var(1), h.std(1), *torch.var_mean(h, 1)], 1),
    "norms": lambda h: torch.stack([h.norm(dim=-1), torch.linalg.vector_norm(h, 3, -1), h.abs().amax(-1)], 1),
    "normalised": lambda h: F.normalize(h, dim=-1) + F.layer_norm(h, (6,)),
    "cosine similarity": lambda h: F.cosine_similarity(h[:, :1], h, dim=-1),
    "einsum": lambda h: torch.einsum("btd,bsd->bts", h, h),
    "outer": lambda h: h.unsqueeze(-1) * h.unsqueeze(-2),
    "shifted in time": lambda h: h.roll(1, 1) + h.flip(1) + F.pad(h, (0, 0, 1, 0))[:, :-1],
    "unbound": lambda h: torch.stack(h.unbind(1), 2),
    "split": lambda h: torch.cat([a * b for a, b in zip(h.split(3, -1), h.chunk(2, -1))], 1),
    "glu": lambda h: F.glu(h),
    "gelu and friends": lambda h: F.gelu(h) + F.silu(h) + F.mish(h) + F.softplus(h) + F.hardswish(h) + F.elu(h),
    "complex": lambda h: torch.fft.rfft(h, dim=-1).abs(),
    "quantiles": lambda h: torch.cat([h.quantile(0.3, dim=1), torch.nanquantile(h, 0.5, 2)], 1),
    "spectra": lambda h: torch.stft(h.flatten(1), 4, 2, window=torch.ones(4).to(h), return_complex=True).abs(),
    "spectra and back": lambda h: torch.istft(
        torch.stft(h.flatten(1), 4, 2, window=torch.ones(4).to(h), return_complex=True), 4, 2
    ),
    "fourier over time": lambda h: torch.fft.fft(h, dim=1).real,
    "windows": lambda h: h.unfold(1, 2, 1),
    "convolved with constants": lambda h: F.conv1d(h.transpose(1, 2), torch.ones(2, 6, 2, dtype=h.dtype)),
    "pooled": lambda h: F.max_pool1d(h.transpose(1, 2), 2) + F.avg_pool1d(h.transpose(1, 2), 2),
    "pooled adaptively": lambda h: F.adaptive_avg_pool1d(h, 2) + F.adaptive_max_pool1d(h, 2),
    "upsampled": lambda h: F.interpolate(images(h).flatten(1, 2), scale_factor=2, mode="bilinear"),
    "unfolded": lambda h: F.fold(F.unfold(images(h).flatten(1, 2), 2, padding=1), (2, 3), 2, padding=1),
    "sampled": lambda h: F.grid_sample(images(h).flatten(1, 2), h.tanh()[:, :, None, :2]),
    "shuffled pixels": lambda h: F.pixel_shuffle(h.unsqueeze(-1).expand(-1, -1, -1, 2).repeat(1, 4, 1, 1), 2),
    "where": lambda h: torch.where(h > 0, h, h.mean(-1, keepdim=True)),
    "trigonometry": lambda h: torch.atan2(h, 1 + h * h) + h.sinc(),
    "distances": lambda h: torch.cdist(h, h + 1) + torch.cdist(h, torch.eye(3, 6, dtype=h.dtype)),
    "products": lambda h: h.prod(-1) + h.logsumexp(-1),
    "determinants": lambda h: torch.linalg.det(h[:, :, :3] @ h[:, :, 3:].transpose(1, 2) / 9).unsqueeze(1),
    "solved": lambda h: torch.linalg.solve(torch.eye(3, dtype=h.dtype) * 9 + h[:, :, :3], h[:, :, 3:]),
    "triangular": lambda h: torch.linalg.solve_triangular(TRIANGLE, h.permute(1, 2, 0), upper=False).permute(2, 0, 1),
    "powers": lambda h: torch.matrix_power(h[:, :, :3], 2),
    "scattered by a mask": masked_scattered,
    "nearest points": nearest,
    "boolean rows": lambda h: h[:, torch.tensor([True, False, True])],
    "listed rows": lambda h: h[:, [2, 0]],
    "ellipsis": lambda h: h[..., None, 1:4, None],
    "triangles": lambda h: h[:, :, :3].tril() + h[:, :, 3:].triu(1),
    "diagonals": lambda h: h[:, :, :3].diagonal(dim1=1, dim2=2),
    "kronecker by hand": lambda h: (h[:, :, None, :, None] * h[:, None, :, None, :]).flatten(3),
    "dropped out in evaluation": lambda h: F.dropout(h, 0.5, training=False),
    "clamped": lambda h: h.clamp(min=-1).clip_(max=0.5),
    "channels last": lambda h: F.avg_pool2d(images(h).flatten(1, 2).to(memory_format=torch.channels_last), 2, 1),
    "batch of batches": lambda h: h.reshape(-1, 6).view(-1, 3, 6).permute(1, 0, 2).contiguous().transpose(0, 1),
}


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_operations_between_layers(agree: Any, name: str) -> None:
    agree(Between(OPERATIONS[name]), torch.randn(B, 3, 6), dtypes=(torch.float64,), reductions=("mean",))


def test_rows_of_other_examples_are_found_in_whatever_batch_they_are_picked() -> None:
    shift = 0
    engine = gradients.attach(model := Between(lambda h: nearest(h, shift)))
    model(torch.randn(B, 3, 6)).square().mean().backward()
    assert engine.isolated == ()
    engine.discard()
    shift = 1
    with pytest.raises(ValueError, match="indexing picks examples out of the batch"):
        model(torch.randn(B, 3, 6)).square().mean().backward()
    engine.detach()


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


def test_a_model_that_computes_its_own_loss(naive: Any, compare: Any) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(7, 5), nn.Linear(5, 7)

        def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Output:
            mask = attention_mask.unsqueeze(-1).to(self.head.weight.dtype)
            h = self.words(input_ids) * mask
            logits = self.head(h.cumsum(1) / mask.cumsum(1).clamp_min(1))
            each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none") * attention_mask
            return Output(each.sum(1).mean(), logits)

    model = Own()
    data = {
        "input_ids": torch.randint(0, 7, (B, 5)),
        "attention_mask": (torch.arange(5) < torch.tensor([5, 2, 3, 1]).unsqueeze(1)).long(),
        "labels": torch.randint(0, 7, (B, 5)),
    }
    each = naive(model, lambda i: model(**{k: v[i : i + 1] for k, v in data.items()}).loss, B)
    with gradients.record(model) as tape:
        model(**data).loss.backward()
    compare(tape, each)


def test_ctc_loss(naive: Any, compare: Any) -> None:
    model = nn.Linear(3, 5)
    x, y = torch.randn(B, 8, 3), torch.randint(1, 5, (B, 3))

    def loss(v: Tensor, t: Tensor, reduction: str) -> Tensor:
        scores = model(v).log_softmax(-1).transpose(0, 1)
        n = v.shape[0]
        return F.ctc_loss(scores, t, torch.full((n,), 8), torch.full((n,), 3), reduction=reduction)

    each = naive(model, lambda i: loss(x[i : i + 1], y[i : i + 1], "sum"), B)
    with gradients.record(model) as tape:
        loss(x, y, "sum").backward()
    compare(tape, each)
