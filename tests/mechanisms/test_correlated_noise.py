"""Correlated noise has the covariance that is charged for, and its state is keys where that is possible."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

from tacit.ledger import CyclicPoisson, GaussianSum
from tacit.ledger.correlation import nodes_after
from tacit.mechanisms import CorrelatedNoise
from tacit.mechanisms.correlated import released_std
from tacit.randomness import KeyedSource, SecureSource, SeededSource

STEPS, STD = 6, 3.0
STRATEGIES: list[tuple[str, tuple[float, ...]]] = [
    ("banded", (1.0,)),
    ("banded", (1.0, 0.5, 0.375)),
    ("banded-inverse", (1.0, -0.5, -0.125)),
    ("buffered", (0.2, 0.3, 0.95, 0.4)),
    ("square-root", ()),
    ("tree", ()),
]


def query(strategy: str, parameters: tuple[float, ...]) -> GaussianSum:
    return GaussianSum(
        group="g", clip_norm=1.0, noise_std=STD, noise="correlated", strategy=strategy, parameters=parameters
    )


def block(name: str = "a") -> CyclicPoisson:
    return CyclicPoisson(groups=2, rate=1.0, block=name)


def noise_of(
    noise: CorrelatedNoise, strategy: str, parameters: tuple[float, ...], position: int, name: str = "a"
) -> np.ndarray:
    sums = [torch.zeros(70_000), torch.zeros(150, 200)]
    noise.add_([(each, STD) for each in sums], query(strategy, parameters), block(name), position)
    return np.concatenate([each.numpy().reshape(-1) for each in sums]) / STD


def inverse(strategy: str, parameters: tuple[float, ...]) -> np.ndarray:
    """C^-1 (for the tree: the nodes that a step adds and takes away), written out."""
    if strategy == "tree":
        sets = [set(nodes_after(t)) for t in range(STEPS + 1)]
        nodes = sorted(set().union(*sets))
        return np.array([[float(n in sets[t + 1]) - float(n in sets[t]) for n in nodes] for t in range(STEPS)])
    if strategy == "buffered":
        half = len(parameters) // 2
        pairs = list(zip(parameters[:half], parameters[half:], strict=True))
        column = [1.0] + [sum(w * r ** (i - 1) for w, r in pairs) for i in range(1, STEPS)]
    elif strategy == "square-root":
        column = [1.0, 1 / 2, 3 / 8, 5 / 16, 35 / 128, 63 / 256]
    else:
        column = [*parameters, *[0.0] * STEPS][:STEPS]
    c = toeplitz(column, np.zeros(STEPS))
    return c if strategy == "banded-inverse" else np.linalg.inv(c)


@pytest.mark.parametrize(("strategy", "parameters"), STRATEGIES)
def test_the_noise_of_all_steps_has_the_covariance_that_is_charged(
    strategy: str, parameters: tuple[float, ...]
) -> None:
    noise = CorrelatedNoise(SecureSource())
    rows = np.array([noise_of(noise, strategy, parameters, t) for t in range(STEPS)])
    d = inverse(strategy, parameters)
    expected, found = d @ d.T, rows @ rows.T / rows.shape[1]
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / rows.shape[1])
    assert np.all(np.abs(found - expected) < 6 * spread)
    assert np.allclose(
        [released_std(query(strategy, parameters), t) / STD for t in range(STEPS)], np.sqrt(np.diag(expected))
    )


@pytest.mark.parametrize(("strategy", "parameters"), STRATEGIES)
def test_a_step_that_released_nothing_takes_its_noise_with_it(strategy: str, parameters: tuple[float, ...]) -> None:
    noise = CorrelatedNoise(SecureSource())
    rows = np.array([noise_of(noise, strategy, parameters, t) for t in (0, 1, 4, 5)])
    d = inverse(strategy, parameters)
    if strategy == "tree":  # prefix sums go on from the last one that was released
        d[4] += d[2] + d[3]
    d = d[[0, 1, 4, 5]]
    expected, found = d @ d.T, rows @ rows.T / rows.shape[1]
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / rows.shape[1])
    assert np.all(np.abs(found - expected) < 6 * spread)


@pytest.mark.parametrize(("strategy", "parameters"), STRATEGIES)
def test_a_new_block_has_nothing_of_the_old_ones_noise(strategy: str, parameters: tuple[float, ...]) -> None:
    noise = CorrelatedNoise(SecureSource())
    before = np.array([noise_of(noise, strategy, parameters, t) for t in range(3)])
    after = np.array([noise_of(noise, strategy, parameters, t, "b") for t in range(3)])
    assert np.all(np.abs(before @ after.T / before.shape[1]) < 6 * 3 / np.sqrt(before.shape[1]))


def test_noise_is_used_for_one_release_only() -> None:
    noise = CorrelatedNoise(SecureSource())
    noise_of(noise, "banded", (1.0, 0.5), 0)
    noise_of(noise, "banded", (1.0, 0.5), 1)
    with pytest.raises(RuntimeError, match="was used"):
        noise_of(noise, "banded", (1.0, 0.5), 1)
    with pytest.raises(RuntimeError, match="not completed"):
        noise_of(noise, "banded", (1.0, 0.5), 2)


def test_memory_is_a_key_for_each_band_and_for_each_digit_of_the_number_of_steps() -> None:
    noise = CorrelatedNoise(SecureSource())
    for t in range(20):
        noise.add_([(torch.zeros(10), 1.0)], query("banded-inverse", (1.0, -0.5, -0.1)), block(), t)
    assert [len(key) for key in noise._state._keys] == [32, 32, 32]
    tree = CorrelatedNoise(SecureSource())
    for t in range(31):
        tree.add_([(torch.zeros(10), 1.0)], query("tree", ()), block(), t)
    assert len(tree._state._keys) == 5
    assert not tree._state._left


def test_the_same_key_gives_the_same_noise_and_others_do_not() -> None:
    key = SecureSource().bytes(32)
    first, again = (KeyedSource(key).normal_(torch.empty(40_000)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, KeyedSource(bytes(32)).normal_(torch.empty(40_000)))


def test_a_failure_half_way_ends_the_block() -> None:
    noise = CorrelatedNoise(SeededSource(1))
    with pytest.raises(ValueError, match="float32 or float64"):
        noise.add_([(torch.zeros(3, dtype=torch.int64), 1.0)], query("tree", ()), block(), 0)
    with pytest.raises(RuntimeError, match="not completed"):
        noise.add_([(torch.zeros(3), 1.0)], query("tree", ()), block(), 0)
