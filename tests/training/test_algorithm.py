"""Algorithm 1 of Abadi et al. 2016, by hand, beside the run; optimizers, schedulers and closures."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.gradients.precision import MARGIN
from tacit.training import AdamBC


def test_algorithm_1_in_ten_lines_of_numpy(make: Any, train: Any, lots: Any, noise: Any, data: TensorDataset) -> None:
    model, _, run = make(steps=5, lot_size=12, clipping=tacit.Flat(0.7), noise_multiplier=1.3)
    w = model.weight.detach().numpy().astype(np.float64)
    b = model.bias.detach().numpy().astype(np.float64)
    drawn = lots(run)
    train(run)

    x, y = (tensor.numpy() for tensor in data.tensors)
    for t, lot in enumerate(drawn):
        gw, gb = np.zeros_like(w), np.zeros_like(b)
        for i in lot:
            logits = w @ x[i] + b
            p = np.exp(logits - logits.max())
            gradient = p / p.sum() - np.eye(3)[y[i]]  # of the loss with respect to the logits
            norm = np.sqrt((gradient**2).sum() * ((x[i] ** 2).sum() + 1))
            factor = 1 / max(1, norm / 0.7)
            gw, gb = gw + factor * np.outer(gradient, x[i]), gb + factor * gradient
        (_, std_w, noise_w), (_, std_b, noise_b) = noise.added[2 * t : 2 * t + 2]
        assert std_w == std_b == pytest.approx(1.3 * 0.7 * (1 + MARGIN))
        w, b = w - 0.1 * (gw + noise_w.numpy()) / 12, b - 0.1 * (gb + noise_b.numpy()) / 12

    assert len(drawn) == 5 and any(len(lot) != 12 for lot in drawn)
    np.testing.assert_allclose(model.weight.detach().numpy(), w, atol=2e-6)
    np.testing.assert_allclose(model.bias.detach().numpy(), b, atol=2e-6)


# Where an optimizer divides by a size of the gradient, a floor keeps rounding of tiny gradients from being blown up.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nag": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True, eps=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, eps=1e-3),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, eps=1e-3),
    "adadelta": lambda p: torch.optim.Adadelta(p, eps=1e-3),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_gets_the_gradients_made_by_hand(
    make: Any, train: Any, lots: Any, noise: Any, each: Any, data: TensorDataset, name: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    twin = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    twin.load_state_dict(model.state_dict())
    _, _, run = make(model, OPTIMIZERS[name](model.parameters()), steps=6, clipping=tacit.Flat(0.4))
    drawn = lots(run)
    train(run)

    reference = OPTIMIZERS[name](twin.parameters())
    x, y = data.tensors
    added = iter(noise.added)
    for lot in drawn:
        rows = torch.from_numpy(lot)
        totals = {key: torch.zeros_like(p) for key, p in twin.named_parameters()}
        for gradient in each(twin, x[rows], y[rows]):
            norm = torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()
            for key, g in gradient.items():
                totals[key] += g * min(1.0, 0.4 / float(norm))
        for key, p in twin.named_parameters():
            p.grad = (totals[key] + next(added)[2]) / 12
        reference.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("made", ["before", "after"])
def test_schedulers_made_before_or_after(make: Any, data: TensorDataset, made: str, silence: Any) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if made == "before" else None
    _, _, run = make(model, optimizer, lot_size=60, steps=3, clipping=tacit.Flat(1e6))
    scheduler = scheduler or torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    twin = nn.Linear(4, 3)
    twin.load_state_dict(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in run.batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    x, y = data.tensors
    for rate in (1.0, 0.5, 0.25):
        gradients = torch.autograd.grad(F.cross_entropy(twin(x), y), list(twin.parameters()))
        with torch.no_grad():
            for p, g in zip(twin.parameters(), gradients, strict=True):
                p -= rate * g
    torch.testing.assert_close(model.weight, twin.weight, atol=1e-5, rtol=1e-5)
    run.close()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # an ordinary step again, whoever wrapped what


def test_a_closure_is_called_once_and_before_the_noise(make: Any, train: Any, noise: Any) -> None:
    outcomes = []
    for closed in (False, True):
        torch.manual_seed(5)
        noise.generator.manual_seed(9)
        model, optimizer, run = make(lot_size=60, steps=3, batch_size=25)
        calls = 0
        if not closed:
            train(run)
        else:
            for x, y in run.batches():

                def closure(
                    x: Any = x, y: Any = y, model: Any = model, optimizer: Any = optimizer, run: Any = run
                ) -> torch.Tensor:
                    nonlocal calls
                    calls += not run.in_trial
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    return loss

                assert float(optimizer.step(closure)) > 0
            assert calls == 9
        outcomes.append(model.weight.detach().clone())
    assert torch.equal(*outcomes)


def test_adam_bc_subtracts_the_variance_of_the_noise(make: Any, lots: Any, train: Any) -> None:
    """With all gradients zero, what Adam sees is noise alone: its second moment must come out as nothing."""
    model = nn.Linear(4, 3)
    optimizer = AdamBC(model.parameters(), lr=0.0, floor=1e-8)
    _, _, run = make(model, optimizer, lot_size=12, steps=40, clipping=tacit.Flat(0.5), noise_multiplier=2.0)
    train(run, lambda x, y: (0 * model(x)).sum())
    variance = (2.0 * 0.5 * (1 + MARGIN) / 12) ** 2
    for p in model.parameters():
        state = optimizer.state[p]
        assert state["noise"] == pytest.approx(variance * (1 - 0.999**40))
        ratio = state["square"] / state["noise"]
        assert 0.4 < float(ratio.mean()) < 1.9  # 600 squares of normals, at six deviations


def test_adam_bc_equals_a_loop_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    optimizer = AdamBC([weight], lr=0.1, betas=(0.8, 0.9), floor=1e-3, weight_decay=0.01)
    w, m, v, phi = weight.detach().numpy().copy(), np.zeros(3), np.zeros(3), 0.0
    generator = np.random.default_rng(0)
    for t in range(1, 20):
        std, g = 0.1 * t, generator.normal(size=3)
        weight.grad = torch.from_numpy(g.copy())
        optimizer.expect_noise({weight: std})
        optimizer.step()
        m, v, phi = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2, 0.9 * phi + 0.1 * std**2
        corrected = np.maximum((v - phi) / (1 - 0.9**t), 1e-6)
        w = w * (1 - 0.1 * 0.01) - 0.1 * (m / (1 - 0.8**t)) / np.sqrt(corrected)
    np.testing.assert_allclose(weight.detach().numpy(), w, rtol=1e-10)


def test_adam_bc_without_noise_is_adam() -> None:
    mine, theirs = (nn.Parameter(torch.linspace(-1, 1, 7, dtype=torch.float64)) for _ in range(2))
    bc, adam = AdamBC([mine], lr=0.05, floor=1e-12), torch.optim.Adam([theirs], lr=0.05, eps=1e-12)
    for t in range(10):
        gradient = torch.sin(torch.arange(7.0, dtype=torch.float64) + t) + 0.1
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        bc.step()
        adam.step()
    torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_adam_bc_receives_the_noise_of_each_group(make: Any, train: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    optimizer = AdamBC(model.parameters())
    scales = {"0.*": 1.0, "1.*": 3.0}
    _, _, run = make(model, optimizer, clipping=tacit.Joint(scales, 0.5), noise_multiplier=2.0, steps=1)
    train(run)
    told = optimizer._noise
    assert told[model[0].weight] == pytest.approx(2.0 * 0.5 * (1 + MARGIN) / 12)
    assert told[model[1].bias] == pytest.approx(3.0 * 2.0 * 0.5 * (1 + MARGIN) / 12)


@pytest.mark.parametrize("bad", [{"lr": -1.0}, {"floor": 0.0}, {"betas": (0.9, 1.0)}])
def test_adam_bc_refuses_nonsense(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(bad))} is"):
        AdamBC([nn.Parameter(torch.zeros(1))], **bad)
