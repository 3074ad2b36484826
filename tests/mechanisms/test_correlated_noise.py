"""Correlated noise has the covariance that is charged for, and its state is keys where that is possible."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

from tacit.block_keys import BlockKeys
from tacit.keyed_noise import KeyedSource, Mixture
from tacit.ledger import CyclicPoisson, GaussianSum
from tacit.ledger.correlation import nodes_after
from tacit.mechanisms import CorrelatedNoise
from tacit.mechanisms.correlated import released_std
from tacit.randomness import SecureSource

STEPS, STD = 6, 3.0
STRATEGIES: list[tuple[str, tuple[float, ...]]] = [
    ("banded", (1.0,)),
    ("banded", (1.0, 0.5, 0.375)),
    ("banded-inverse", (1.0, -0.5, -0.125)),
    ("sparse-inverse", (-0.5, -0.25, 1.0, 4.0)),
    ("buffered", (0.2, 0.3, 0.95, 0.4)),
    ("square-root", ()),
    ("tree", ()),
]


def query(strategy: str, parameters: tuple[float, ...]) -> GaussianSum:
    return GaussianSum(
        group="g", clip_norm=1.0, noise_std=STD, noise="correlated", strategy=strategy, parameters=parameters
    )


class Blocks:
    """Noise of a block, which can be resumed and followed by others."""

    def __init__(self) -> None:
        self.keys = BlockKeys(SecureSource())
        self.noise = CorrelatedNoise(lambda: self.keys)

    def add_(self, sums: Any, asked: GaussianSum, position: int) -> None:
        self.noise.add_(sums, asked, CyclicPoisson(groups=2, rate=1.0, block=self.keys.name), position)

    def resume(self, position: int) -> None:
        """As another process does, which has read the keys."""
        self.keys = BlockKeys.read(json.loads(json.dumps(self.keys.written())), SecureSource())
        self.keys.go_on(position)
        self.noise = CorrelatedNoise(lambda: self.keys)


def noise_of(noise: Blocks, strategy: str, parameters: tuple[float, ...], position: int) -> np.ndarray:
    sums = [torch.zeros(70_000), torch.zeros(150, 200)]
    noise.add_([(each, STD) for each in sums], query(strategy, parameters), position)
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
    if strategy == "sparse-inverse":
        column = [1.0, -0.5, 0.0, 0.0, -0.25, 0.0]
    c = toeplitz(column, np.zeros(STEPS))
    return c if strategy.endswith("inverse") else np.linalg.inv(c)


@pytest.mark.parametrize(("strategy", "parameters"), STRATEGIES)
def test_the_noise_of_all_steps_has_the_covariance_that_is_charged(
    strategy: str, parameters: tuple[float, ...]
) -> None:
    noise = Blocks()
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
    noise = Blocks()
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
    noise = Blocks()
    before = np.array([noise_of(noise, strategy, parameters, t) for t in range(3)])
    noise.keys = BlockKeys(SecureSource())
    after = np.array([noise_of(noise, strategy, parameters, t) for t in range(3)])
    assert np.all(np.abs(before @ after.T / before.shape[1]) < 6 * 3 / np.sqrt(before.shape[1]))


def test_noise_is_used_for_one_release_only() -> None:
    noise = Blocks()
    noise_of(noise, "banded", (1.0, 0.5), 0)
    noise_of(noise, "banded", (1.0, 0.5), 1)
    with pytest.raises(RuntimeError, match="was used"):
        noise_of(noise, "banded", (1.0, 0.5), 1)
    with pytest.raises(RuntimeError, match="not completed"):
        noise_of(noise, "banded", (1.0, 0.5), 2)


@pytest.mark.parametrize(("strategy", "parameters"), STRATEGIES)
def test_memory_is_one_key_but_for_bands_and_buffers(strategy: str, parameters: tuple[float, ...]) -> None:
    noise = Blocks()
    for t in range(20):
        noise.add_([(torch.zeros(1000), 1.0)], query(strategy, parameters), t)
    assert len(noise.keys) == 1
    held = sum(each.numel() for each in getattr(noise.noise._state, "_rows", []))
    assert held == 1000 * {"banded": len(parameters) - 1, "buffered": 2}.get(strategy, 0)
    kept = vars(noise.noise._state).values()
    assert strategy in ("banded", "buffered") or not any(isinstance(each, torch.Tensor | list) for each in kept)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize(("strategy", "parameters"), STRATEGIES)
def test_resumed_noise_goes_on_with_the_covariance_that_is_charged(
    strategy: str, parameters: tuple[float, ...], lost: int
) -> None:
    """Two steps, another process, ``lost`` of the steps recorded and not released, a third process, and the rest."""
    noise, kept = Blocks(), [t for t in range(STEPS) if not 2 <= t < 2 + lost]
    rows = []
    for t in kept:
        if t in (2 + lost, 4):
            noise.resume(t)
        rows.append(noise_of(noise, strategy, parameters, t))
    d, released = inverse(strategy, parameters)[kept], np.array(rows)
    expected, found = d @ d.T, released @ released.T / released.shape[1]
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / released.shape[1])
    assert np.all(np.abs(found - expected) < 6 * spread)


def test_a_step_that_is_taken_again_from_an_older_copy_has_other_fresh_noise() -> None:
    """A ledger that was put back repeats a number; the two noises share what came before and nothing else."""
    noise, parameters = Blocks(), (1.0, -0.5)
    first = noise_of(noise, "banded-inverse", parameters, 0)
    once = noise_of(noise, "banded-inverse", parameters, 1)
    noise.resume(1)
    again = noise_of(noise, "banded-inverse", parameters, 1)
    fresh, other = once + 0.5 * first, again + 0.5 * first
    assert np.std(fresh) == pytest.approx(1, abs=0.02)
    assert np.std(other) == pytest.approx(1, abs=0.02)
    assert abs(np.mean(fresh * other)) < 0.02


def test_tensors_in_any_layout_get_the_same_noise_as_contiguous_ones() -> None:
    noise, asked = Blocks(), query("sparse-inverse", (-0.5, 1.0))
    found = []
    for turned in (False, True):
        noise.noise = CorrelatedNoise(lambda: noise.keys)
        for t in range(2):
            sums = [torch.zeros(300, 200).T if turned else torch.zeros(200, 300), torch.zeros(40_000)]
            noise.add_([(each, STD) for each in sums], asked, t)
        found.append(torch.cat([each.reshape(-1) for each in sums]))
    assert torch.allclose(found[0], found[1], atol=1e-3)


@pytest.mark.parametrize("streams", [1, 2, 7, 64, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mixture_is_the_weighted_sum_of_its_streams(streams: int, dtype: torch.dtype) -> None:
    key, weights = SecureSource().bytes(32), np.random.default_rng(0).normal(size=streams).astype(np.float32)
    sizes = (3, 16_384, 40_001)

    def parts() -> list[tuple[KeyedSource, float]]:
        return [(KeyedSource(key, number), float(weight)) for number, weight in enumerate(weights)]

    together = [torch.zeros(size, dtype=dtype) for size in sizes]
    Mixture(parts()).add_normals_([(each, 3.0, 2.0**-14) for each in together])
    one_by_one = Mixture(parts())
    expected = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    for number, weight in enumerate(weights):
        source = KeyedSource(key, number)
        for total in expected:
            total += float(weight) * source.normal_(torch.empty(len(total), dtype=dtype)).double()
    for size, found, total in zip(sizes, together, expected, strict=True):
        assert torch.allclose(one_by_one.normal_(torch.empty(size, dtype=dtype)).double(), total, atol=1e-4)
        assert torch.allclose(found.double(), 3 * total, atol=4e-4)
        assert torch.equal(found * 2**14, (found * 2**14).round())


def test_the_same_key_gives_the_same_noise_and_others_do_not() -> None:
    key = SecureSource().bytes(32)
    first, again = (KeyedSource(key).normal_(torch.empty(40_000)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, KeyedSource(bytes(32)).normal_(torch.empty(40_000)))
    assert not torch.equal(first, KeyedSource(key, 1).normal_(torch.empty(40_000)))


def test_a_failure_half_way_ends_the_block() -> None:
    noise = Blocks()
    with pytest.raises(ValueError, match="float32 or float64"):
        noise.add_([(torch.zeros(3, dtype=torch.int64), 1.0)], query("tree", ()), 0)
    with pytest.raises(RuntimeError, match="not completed"):
        noise.add_([(torch.zeros(3), 1.0)], query("tree", ()), 0)


@pytest.mark.parametrize("harm", [{}, {"groups": "00"}, {"keys": []}, {"keys": [[1, "00" * 32]]}, {"keys": [[0, "0"]]}])
def test_files_that_hold_no_keys_are_refused(harm: dict[str, Any]) -> None:
    written = BlockKeys(SecureSource()).written()
    given = written | harm if harm else [written]
    with pytest.raises(ValueError, match="not the keys"):
        BlockKeys.read(given, SecureSource())
