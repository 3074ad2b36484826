"""The oracle: one example at a time through ordinary autograd."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from torch import Tensor, nn

from tacit import gradients


@pytest.fixture
def without_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow every operation or refuse it, for tests of the rules: no module runs one example at a time instead."""
    monkeypatch.setattr("tacit.gradients.passes.make_plan", lambda *_: {})


@pytest.fixture(autouse=True)
def _quiet() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Flat:
    def __init__(self, clip: float) -> None:
        self.clip = clip

    def partition(self, shapes: Mapping[str, torch.Size]) -> Sequence[tuple[str, ...]]:
        return [tuple(shapes)]

    def weights(self, norms: Tensor) -> Tensor:
        return (self.clip / norms.clamp_min(1e-30)).clamp_max(1)


class PerLayer(Flat):
    def partition(self, shapes: Mapping[str, torch.Size]) -> Sequence[tuple[str, ...]]:
        return [(name,) for name in shapes]


class Halves(Flat):
    """Two groups, each with its own bound."""

    def partition(self, shapes: Mapping[str, torch.Size]) -> Sequence[tuple[str, ...]]:
        names = list(shapes)
        parts = [tuple(names[::2]), tuple(names[1::2])]
        return [p for p in parts if p]

    def weights(self, norms: Tensor) -> Tensor:
        bounds = torch.tensor([self.clip, 0.3 * self.clip], dtype=norms.dtype)[: norms.shape[1]]
        return (bounds / norms.clamp_min(1e-30)).clamp_max(1)


class Joint(Halves):
    """One factor for all groups, from the group that is furthest over its bound."""

    def weights(self, norms: Tensor) -> Tensor:
        return super().weights(norms).amin(1, keepdim=True).expand_as(norms)


class Automatic(Flat):
    def weights(self, norms: Tensor) -> Tensor:
        return 1 / (norms + 0.01)


STRATEGIES = (Flat, PerLayer, Halves, Joint, Automatic)


def one(value: Any, i: int, dim: int | None = 0) -> Any:
    """Example i of an argument, its batch dimension kept."""
    if isinstance(value, Tensor):
        return value if dim is None or value.ndim == 0 else value.narrow(dim, i, 1)
    if isinstance(value, dict):
        return {k: one(v, i, dim) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(one(v, i, dim) for v in value)
    return value


def square_loss(out: Any, *_: Any) -> Tensor:
    """A loss with one value per example for any batch-first output."""
    return (out.flatten(1) * torch.linspace(0.5, 1.5, out[0].numel(), dtype=out.dtype)).sin().sum(1)


def _naive(model: nn.Module, loss_of: Callable[[int], Tensor], batch: int) -> dict[str, Tensor]:
    """Every example's gradient, [batch, *shape] by parameter name."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {n: [] for n in parameters}
    for i in range(batch):
        grads = torch.autograd.grad(loss_of(i), list(parameters.values()), allow_unused=True)
        for (n, p), g in zip(parameters.items(), grads):
            rows[n].append(torch.zeros_like(p) if g is None else g.detach())
    return {n: torch.stack(r) for n, r in rows.items()}


def _compare(tape: gradients.Engine, each: Mapping[str, Tensor], strategies: Sequence[type[Flat]] = STRATEGIES) -> None:
    """Norms and clipped sums under every strategy against the oracle's gradients."""
    dtype = next(iter(each.values())).dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    exact = {n: g.double() for n, g in each.items()}
    shapes = {n: g.shape[1:] for n, g in each.items()}
    total = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in exact.values()]).norm(dim=0)
    torch.testing.assert_close(tape.norms().double(), total, rtol=tolerance, atol=tolerance * float(total.max()))
    clip = float(total.median()) or 1.0
    for strategy in strategies:
        clipping = strategy(clip)
        groups = clipping.partition(shapes)
        norms = torch.stack(
            [
                torch.stack([exact[n].reshape(len(exact[n]), -1).norm(dim=1) for n in group]).norm(dim=0)
                for group in groups
            ],
            1,
        )
        factors = clipping.weights(norms)
        found = tape.clipped_sum(clipping, keep=True)
        assert set(found) == set(each)
        scale = max(float((factors.amax(1) * total).sum()), 1e-12)
        for g, group in enumerate(groups):
            for n in group:
                wanted = torch.tensordot(factors[:, g], exact[n], 1)
                error = float((found[n].double() - wanted).norm())
                # Relative to what is summed: where clipped gradients cancel, the sum alone is no measure.
                own = float((factors[:, g] * exact[n].reshape(len(exact[n]), -1).norm(dim=1)).sum())
                own = max(own, 1e-2 * scale)
                assert error <= tolerance * own, (strategy.__name__, n, error / own)


@pytest.fixture
def agree() -> Callable[..., None]:
    """Check a model against the oracle, for every reduction, strategy and dtype."""

    def check(
        model: nn.Module,
        *args: Any,
        loss: Callable[..., Tensor] = square_loss,
        target: Any = None,
        batch: int | None = None,
        batch_dim: Any = 0,
        dims: Sequence[int | None] | None = None,
        dtypes: Sequence[torch.dtype] = (torch.float32, torch.float64),
        reductions: Sequence[str] = ("mean", "sum", "none"),
        kwargs: Mapping[str, Any] | None = None,
        cut: Callable[[int], tuple[Any, ...]] | None = None,
    ) -> None:
        kwargs = dict(kwargs or {})
        isolate: bool | None = None
        for dtype in dtypes:
            model = model.to(dtype)

            def cast(v: Any, dtype: torch.dtype = dtype) -> Any:
                if isinstance(v, Tensor):
                    return v.to(dtype) if v.is_floating_point() else v
                if isinstance(v, dict):
                    return {k: cast(u) for k, u in v.items()}
                return type(v)(cast(u) for u in v) if isinstance(v, (tuple, list)) else v

            inputs, options = cast(args), cast(kwargs)
            where = list(dims) if dims is not None else [0] * len(inputs)
            size = batch if batch is not None else next(v for v in inputs if isinstance(v, Tensor)).shape[where[0] or 0]

            def single(
                i: int, model: nn.Module = model, inputs: Any = inputs, options: Any = options, where: Any = where
            ) -> Tensor:
                parts = cut(i) if cut is not None else tuple(one(v, i, d) for v, d in zip(inputs, where))
                return loss(model(*parts, **one(options, i)), one(target, i)).sum()

            each = _naive(model, single, size)
            for reduction in reductions:
                with gradients.record(model, batch_dim=batch_dim, isolate=isolate) as tape:
                    losses = loss(model(*inputs, **options), target)
                    assert losses.shape == (size,)
                    if reduction == "mean":
                        losses.mean().backward()
                    elif reduction == "sum":
                        losses.sum().backward()
                    else:
                        losses.backward(torch.ones_like(losses))
                isolate = None if tape.isolated else False  # a plan is the same for every type and reduction
                _compare(tape, each, STRATEGIES if reduction == "mean" else (Flat,))
            assert all(p.grad is None for p in model.parameters())
        model.float()

    return check


@pytest.fixture
def naive() -> Callable[..., dict[str, Tensor]]:
    return _naive


@pytest.fixture
def compare() -> Callable[..., None]:
    return _compare


@pytest.fixture
def flat() -> type[Flat]:
    return Flat


@pytest.fixture
def per_layer() -> type[Flat]:
    return PerLayer
