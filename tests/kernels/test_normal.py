"""Normal values by each version of the compiled arithmetic, and by arrays: as precise as promised, from equal words."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tacit import _normal
from tacit.randomness import SecureSource, SeededSource

CHANCE = 1e-9


def close_to_normal(score: float) -> bool:
    """Whether a standard normal score is no surprise at the failure probability of these tests."""
    return abs(score) < stats.norm.isf(CHANCE / 2)


@pytest.fixture(scope="module")
def source() -> SecureSource:
    return SecureSource()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
class TestNormal:
    def test_distribution(self, source: SecureSource, dtype: torch.dtype) -> None:
        values = source.normal_(torch.empty(2_000_003, dtype=dtype)).double().numpy()
        n = values.size
        assert stats.kstest(values, "norm").pvalue > CHANCE
        assert close_to_normal(values.sum() / math.sqrt(n))
        assert close_to_normal((np.square(values).sum() - n) / math.sqrt(2 * n))
        assert close_to_normal((values**3).sum() / math.sqrt(15 * n))
        assert close_to_normal(((values**4).sum() - 3 * n) / math.sqrt(96 * n))

    def test_coordinates_and_consecutive_fills_are_independent(self, source: SecureSource, dtype: torch.dtype) -> None:
        n = 600_000
        first, second = (source.normal_(torch.empty(n, dtype=dtype)).double().numpy() for _ in range(2))
        half = 1 << 15  # cosine and sine of a pair lie half a piece apart
        for a, b in ((first, second), (first[1:], first[:-1]), (first[:half], first[half : 2 * half])):
            assert close_to_normal(float(a @ b) / math.sqrt(a.size))
            assert close_to_normal(float((a**2 - 1) @ (b**2 - 1)) / math.sqrt(4 * a.size))

    def test_any_shape_stride_and_scale(self, source: SecureSource, dtype: torch.dtype) -> None:
        for size in (0, 1, 2, 3, 262_145):
            values = source.normal_(torch.full((size,), math.nan, dtype=dtype))
            assert torch.isfinite(values).all()
            assert (values != 0).all()
        table = torch.zeros(300, 400, dtype=dtype)
        source.normal_(table.T[1:], std=3.0)
        assert (table[:, 0] == 0).all()
        assert close_to_normal((table.double().square().sum().item() / 9 - 119_700) / math.sqrt(2 * 119_700))
        for std in (1e-25, 1e25):
            scaled = source.normal_(torch.empty(10_000, dtype=dtype), std=std).double() / std
            assert close_to_normal((scaled.square().sum().item() - 10_000) / math.sqrt(20_000))
        assert (source.normal_(torch.ones(5, dtype=dtype), std=0.0) == 0).all()

    def test_parameters_can_be_filled(self, source: SecureSource, dtype: torch.dtype) -> None:
        assert source.normal_(torch.nn.Parameter(torch.zeros(3, dtype=dtype))).detach().abs().min() > 0


@pytest.mark.parametrize("seed", range(5))
def test_float32_normals_are_box_muller_of_the_stream_to_the_precision_promised(seed: int) -> None:
    """Recomputed in float64 from the same bits."""
    pairs = 30_000
    x, y = SeededSource(seed).normal_(torch.empty(2 * pairs)).double().numpy().reshape(2, pairs)
    again = SeededSource(seed)
    words = np.frombuffer(again.bytes(8 * pairs), dtype=np.int32).astype(np.float64)
    t, angle = words[:pairs] * 2.0**-32, words[pairs:] * math.pi * 2.0**-31
    near = np.flatnonzero(np.abs(t) < 2.0**-10)
    more = (again.words(near.size) + 0.5) * 2.0**-96
    t[near] += more * np.where(t[near] >= 0, 1, -1) + np.where(t[near] >= 0, 0, 2.0**-32)
    radius = np.sqrt(-2 * np.where(t > 0, np.log(np.abs(t)), np.log1p(-np.abs(t))))
    limit = 2.0**-20 * (1 + radius)
    assert (np.abs(x - radius * np.cos(angle)) < limit).all()
    assert (np.abs(y - radius * np.sin(angle)) < limit).all()
    assert np.allclose(np.hypot(x, y)[near], radius[near], rtol=1e-6)


class ChosenWords(SeededSource):
    """A source whose first words are given: to see what becomes of rare ones."""

    def __init__(self, words: list[int], more: int) -> None:
        super().__init__(0)
        self._given, self._more = words, more

    def fill(self, buffer: bytearray | memoryview) -> None:
        half = len(buffer) // 8
        np.frombuffer(buffer, dtype=np.int32)[:] = self._given + [0] * (2 * half - len(self._given))

    def words(self, size: int) -> np.ndarray:  # type: ignore[type-arg]
        return np.full(size, self._more, dtype=np.uint64)


@pytest.mark.parametrize(
    ("word", "more", "radius"),
    [
        (0, 0, math.sqrt(2 * 97 * math.log(2))),  # the largest value there is, 11.6
        (0, 2**63, math.sqrt(2 * 33 * math.log(2))),  # beyond what 32 bits can reach, 6.66
        (1, 2**63, math.sqrt(-2 * math.log(1.5 * 2.0**-32))),
        (-1, 2**63, math.sqrt(2 * 2.0**-33)),  # next to the centre: 1.5e-5, where float32 steps of u are 3e-4
        (-1, 0, math.sqrt(2 * 2.0**-97)),
        (-(2**31), 0, math.sqrt(2 * math.log(2))),
        (2**31 - 1, 0, math.sqrt(2 * math.log(2))),
    ],
)
def test_far_and_near_radii_are_exact(word: int, more: int, radius: float) -> None:
    values = ChosenWords([word], more).normal_(torch.empty(2))  # angle zero
    assert values[0].item() == pytest.approx(radius, rel=2e-7)
    assert values[1].item() == 0


def test_far_tail_has_the_right_frequency(source: SecureSource) -> None:
    count = {3.5: 0, 4.5: 0, 5.0: 0}
    values, rounds = torch.empty(1_000_000), 12
    for _ in range(rounds):
        source.normal_(values)
        for level in count:
            count[level] += int((values.abs() > level).sum())
    for level, found in count.items():
        assert stats.binomtest(found, rounds * values.numel(), 2 * stats.norm.sf(level)).pvalue > CHANCE


@pytest.mark.parametrize("size", [0, 1, 2, 3, 255, 256, 257, 1000, 65_536, 65_537, 400_001])
@pytest.mark.parametrize("std", [0.0, 1e-25, 1.0, 20_000.0, 1e25])
def test_the_same_words_give_the_same_values_however_they_are_computed(
    size: int, std: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed then means the same with and without a compiler."""
    found = SeededSource(size).normal_(torch.empty(size), std).double()
    monkeypatch.setattr(_normal, "kernels", None)
    source = SeededSource(size)
    expected = source.normal_(torch.empty(size), std).double()
    assert ((found - expected).abs() <= 2.0**-20 * (std + expected.abs())).all()
    assert source.bytes(8) == _after(size)


def _after(size: int) -> bytes:
    source = SeededSource(size)
    source.normal_(torch.empty(size))
    return source.bytes(8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", [1.0, 0.7, 3e-9, 4e5])
@pytest.mark.parametrize("size", [0, 1, 5, 255, 1000, 70_001])
def test_noise_is_added_and_rounded(size: int, std: float, dtype: torch.dtype) -> None:
    """As if the values had been drawn first, what is not finite included; or a step of the grid beside that."""
    grid = 2.0 ** (math.floor(math.log2(std)) - 14)
    given = 3 * std * torch.randn(size, dtype=dtype)
    given[: min(size, 5)] = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0], dtype=dtype)[: min(size, 5)]
    values = SeededSource(size).normal_(torch.empty(size, dtype=dtype), std / grid)
    total = given.clone()
    source = SeededSource(size)
    source.add_normal_(total, std, grid)
    expected = (values.double() + given.double() / grid).round() * grid
    finite = given.isfinite()
    assert torch.equal(total[~finite].nan_to_num(nan=7.0), given[~finite].nan_to_num(nan=7.0))
    apart = (total - expected)[finite].abs() / grid
    assert ((apart < 0.01) | ((apart - 1).abs() < 0.01)).all()
    assert (apart > 0.5).sum() <= 3 + (size // 20 if dtype == torch.float32 else 0)
    assert torch.equal((total[finite] / grid).round() * grid, total[finite])


def test_noise_that_is_added_has_its_deviation(source: SecureSource) -> None:
    size, std, grid = 1_000_003, 0.8, 2.0**-15
    total = torch.full((size,), 5.0)
    source.add_normal_(total, std, grid)
    score = (total.double() - 5.0) / std
    assert stats.kstest(score.numpy(), "norm").pvalue > CHANCE
    assert close_to_normal(score.sum().item() / math.sqrt(size))
    assert close_to_normal((score.square().sum().item() - size) / math.sqrt(2 * size))
    again = torch.full((size,), 5.0)
    source.add_normal_(again, std, grid)
    assert close_to_normal((score @ (again.double() - 5.0)).item() / std / math.sqrt(size))


@pytest.mark.parametrize("arithmetic", ["plain", "avx2", "avx512"], indirect=True)
def test_wrong_sizes_are_refused() -> None:
    kernels = _normal.kernels
    assert kernels is not None
    words, none, out = np.full(4, 2**30, dtype=np.int32), np.empty(0, dtype=np.uint64), np.empty(4, dtype=np.float32)
    kernels.normal(words, none, out, 1.0)
    kernels.add_normal(words, none, out, 1.0, 1.0)
    edge = np.array([2**30, 5, 2**30, 2**30], dtype=np.int32)
    assert kernels.edges(edge[:2]) == 1
    for given in (
        (words[:3], none, out),
        (words, none[:0], out[:2]),
        (edge, none, out),
        (words, np.ones(1, np.uint64), out),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.normal(*given, 1.0)
        with pytest.raises(ValueError, match="do not fit"):
            kernels.add_normal(*given, 1.0, 1.0)
    with pytest.raises((BufferError, ValueError), match=r"read-only|not writable|contiguous"):
        kernels.normal(words, none, np.frombuffer(bytes(16), dtype=np.float32), 1.0)
    with pytest.raises((BufferError, ValueError), match=r"contiguous"):
        kernels.normal(words, none, np.empty(8, dtype=np.float32)[::2], 1.0)
    with pytest.raises(TypeError, match="3 arguments instead of 4"):
        kernels.normal(words, none, out)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="number"):
        kernels.add_normal(words, none, out, 1.0, "wide")  # type: ignore[arg-type]
