"""Normal values by each version of the compiled arithmetic, and by arrays: as precise as promised, from equal words."""

from __future__ import annotations

import math
import os
import signal
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from kernels.conftest import built
from tacit import _normal
from tacit._aes import keystream
from tacit.randomness import SecureSource, SeededSource

CHANCE = 1e-9
COMPILED = pytest.mark.parametrize("arithmetic", ["plain", "avx2", "avx512"], indirect=True)


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
        half = 1 << 13  # cosine and sine of a pair lie half a piece apart
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


@pytest.mark.parametrize("size", [60_000, 60_003])
@pytest.mark.parametrize("seed", range(5))
def test_float32_normals_are_box_muller_of_the_keystreams_to_the_precision_promised(seed: int, size: int) -> None:
    """Recomputed in float64 from the same bits, for every piece of 2^14 values from a key of its own."""
    values = SeededSource(seed).normal_(torch.empty(size)).double()
    again = SeededSource(seed)
    for piece in values.split(1 << 14):
        pairs = (len(piece) + 1) // 2
        bits = keystream(again.bytes(32))
        radii, angles = (
            np.frombuffer(bits.update(bytes(16 * math.ceil(pairs / 4))), dtype=np.int32)[:pairs].astype(np.float64)
            for _ in range(2)
        )
        t, angle = radii * 2.0**-32, angles * math.pi * 2.0**-31
        near = np.flatnonzero(np.abs(t) < 2.0**-10)
        more = (np.frombuffer(bits.update(bytes(8 * near.size)), dtype=np.uint64) + 0.5) * 2.0**-96
        t[near] += more * np.where(t[near] >= 0, 1, -1) + np.where(t[near] >= 0, 0, 2.0**-32)
        radius = np.sqrt(-2 * np.where(t > 0, np.log(np.abs(t)), np.log1p(-np.abs(t))))
        limit = 2.0**-20 * (1 + radius)
        x, y = piece[:pairs].numpy(), piece[pairs:].numpy()
        assert (np.abs(x - radius * np.cos(angle)) < limit).all()
        assert (np.abs(y - (radius * np.sin(angle))[: y.size]) < limit[: y.size]).all()
        both = near[near < y.size]
        assert np.allclose(np.hypot(x[both], y[both]), radius[both], rtol=1e-6)


class ChosenBits:
    """A keystream with chosen words, as `chosen.h` makes it from the key: a radius, an angle, bits for the edges."""

    def __init__(self, key: memoryview) -> None:
        self._rest = bytes([*key[:8], *key[:8], *key[8:16], *key[8:16], *key[16:24], *key[16:24]])

    def update(self, zeros: bytes) -> bytes:
        found, self._rest = self._rest[: len(zeros)], self._rest[len(zeros) :]
        return found

    def update_into(self, zeros: bytes, out: memoryview) -> None:
        out[:] = self.update(zeros)


class ChosenKey(SeededSource):
    def __init__(self, radius: int, more: int) -> None:
        super().__init__(0)
        self._given = struct.pack("<qqQQ", radius, 0, more, 0)

    def fill(self, buffer: bytearray | memoryview) -> None:
        buffer[:] = self._given


@pytest.fixture
def chosen_bits(arithmetic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """See what becomes of rare words: no key that gives them could be found."""
    monkeypatch.setattr(_normal, "keystream", ChosenBits)
    if arithmetic != "arrays":
        cipher = "-DAES=((Aes){keep_key,repeat_key})"
        kernels = built(arithmetic, "-include", str(Path(__file__).with_name("chosen.h")), cipher)
        monkeypatch.setattr(_normal, "kernels", kernels)


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
@pytest.mark.usefixtures("chosen_bits")
def test_far_and_near_radii_are_exact(word: int, more: int, radius: float) -> None:
    values = ChosenKey(word, more).normal_(torch.empty(2))  # angle zero
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


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 255, 256, 257, 1000, 16_384, 16_385, 400_001])
@pytest.mark.parametrize("std", [0.0, 1e-25, 1.0, 20_000.0, 1e25])
def test_the_same_keys_give_the_same_values_however_they_are_computed(
    size: int, std: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed then means the same with and without a compiler."""
    source = SeededSource(size)
    found, after = source.normal_(torch.empty(size), std).double(), source.bytes(8)
    monkeypatch.setattr(_normal, "kernels", None)
    source = SeededSource(size)
    expected = source.normal_(torch.empty(size), std).double()
    assert ((found - expected).abs() <= 2.0**-20 * (std + expected.abs())).all()
    assert source.bytes(8) == after


def test_a_piece_may_have_any_number_of_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand in this one, in pieces of 2^14 values seldom more than thirty."""
    size = 1 << 20
    monkeypatch.setattr(_normal, "_PIECE", size)
    found = SeededSource(1).normal_(torch.empty(size)).double()
    monkeypatch.setattr(_normal, "kernels", None)
    expected = SeededSource(1).normal_(torch.empty(size)).double()
    radius = torch.hypot(*expected.view(2, -1))
    assert ((found - expected).abs().view(2, -1) <= 2.0**-20 * (1 + radius)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_so_many_values_in_turn_are_the_same_values(dtype: torch.dtype) -> None:
    sizes = [1 << 14, 1 << 15, 1 << 14, 5]
    whole, parts = SeededSource(2), SeededSource(2)
    expected = whole.normal_(torch.empty(sum(sizes), dtype=dtype))
    assert torch.equal(torch.cat([parts.normal_(torch.empty(size, dtype=dtype)) for size in sizes]), expected)
    total, pieces = torch.ones(sum(sizes), dtype=dtype), torch.ones(sum(sizes), dtype=dtype)
    whole.add_normal_(total, 1.0, 2.0**-14)
    for piece in pieces.split(sizes):
        parts.add_normal_(piece, 1.0, 2.0**-14)
    assert torch.equal(pieces, total)
    assert parts.bytes(8) == whole.bytes(8)


def test_any_number_of_threads_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for threads in (1, 2, 3, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        source, total = SeededSource(3), torch.ones(100_003)
        source.add_normal_(total, 1.0, 2.0**-14)
        results.append(torch.cat([total, source.normal_(torch.empty(100_003))]))
    for result in results:
        assert torch.equal(result, results[0])


def test_several_sums_are_those_of_one_after_the_other() -> None:
    sums = [(torch.ones(size), 1.0 + size, 2.0**-14) for size in (5, 1 << 15, 0, 16_385, 1)]
    sums[1] = (torch.ones(128, 256), *sums[1][1:])
    together, apart = SeededSource(9), SeededSource(9)
    together.add_normals_(sums)
    for total, std, grid in sums:
        expected = torch.ones(total.shape)
        apart.add_normal_(expected, std, grid)
        assert torch.equal(total, expected)
    assert together.bytes(8) == apart.bytes(8)


def test_sums_of_both_kinds_are_the_same_however_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for _ in range(2):
        source = SeededSource(10)
        sums = [torch.zeros(3), torch.zeros(20_000, dtype=torch.float64), torch.zeros(20_000), torch.zeros(2).double()]
        source.add_normals_([(total, 1.0, 2.0**-14) for total in sums])
        results.append((torch.cat([total.double() for total in sums]), source.bytes(8)))
        monkeypatch.setattr(_normal, "kernels", None)
    (found, after), (expected, after_too) = results
    assert (found - expected).abs().max() <= 2.0**-14
    assert expected.abs().max() > 3
    assert after == after_too


class Watched(SeededSource):
    """Notes the memory in which keys are drawn."""

    def fill(self, buffer: bytearray | memoryview) -> None:
        super().fill(buffer)
        assert isinstance(buffer, bytearray)
        assert any(buffer)
        self.buffers = [*getattr(self, "buffers", []), buffer]


def test_keys_are_overwritten_once_they_are_used() -> None:
    source = Watched(4)
    source.normal_(torch.empty(40_000))
    source.add_normal_(torch.ones(7), 1.0, 2.0**-14)
    assert sum(map(len, source.buffers)) == 4 * 32
    assert not any(map(any, source.buffers))


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


def test_sums_that_would_be_copied_are_refused(source: SecureSource) -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        source.add_normal_(torch.zeros(4, 5).T, 1.0, 1.0)


def test_a_forked_process_makes_noise_of_its_own() -> None:
    """And does not wait for threads of its parent."""
    source = SecureSource()
    source.normal_(torch.empty(100_000))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)
        os.write(write, source.normal_(torch.empty(100_000))[-1000:].numpy().tobytes())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    theirs = np.frombuffer(os.read(read, 4000), dtype=np.float32)
    ours = source.normal_(torch.empty(100_000))[-1000:].numpy()
    os.close(read)
    os.close(write)
    assert theirs.size == ours.size
    assert not (theirs == ours).any()


@COMPILED
def test_wrong_sizes_are_refused() -> None:
    kernels = _normal.kernels
    assert kernels is not None
    keys, out = bytes(64), np.empty(6, dtype=np.float32)
    kernels.noise(keys, out, 1.0, 0.0, 4, 1)
    kernels.noise(b"", out[:0], 1.0, 0.0, 4, 1)
    for given, values, piece, threads in (
        (keys[:32], out, 4, 1),
        (keys[:63], out, 4, 1),
        (keys, out, 6, 1),
        (keys, out, 2, 1),
        (b"", out, 0, 1),
        (keys, out[:0], 4, 1),
        (keys, out, 4, 0),
        (keys, out, 4, 2**40),
        (keys, np.empty(23, dtype=np.uint8), 4, 1),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.noise(given, values, 1.0, 0.0, piece, threads)  # type: ignore[arg-type]
    with pytest.raises((BufferError, ValueError), match=r"read-only|not writable|contiguous"):
        kernels.noise(keys, np.frombuffer(bytes(24), dtype=np.float32), 1.0, 0.0, 4, 1)
    with pytest.raises((BufferError, ValueError), match=r"contiguous"):
        kernels.noise(keys, np.empty(12, dtype=np.float32)[::2], 1.0, 0.0, 4, 1)
    with pytest.raises(TypeError, match="6 arguments, not 3"):
        kernels.noise(keys, out, 1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="number"):
        kernels.noise(keys, out, 1.0, "wide", 4, 1)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        kernels.noise(keys, out, 1.0, 0.0, -4, 1)


@COMPILED
def test_wrong_sizes_of_mixed_noise_are_refused() -> None:
    kernels = _normal.kernels
    assert kernels is not None
    keys, weights, out = bytes(128), np.ones(2, dtype=np.float32), np.empty(6, dtype=np.float32)
    kernels.mixed_noise(keys, weights, out, 1.0, 0.0, 4, 1)
    for given, factors, piece in (
        (keys[:64], weights, 4),
        (keys, weights[:1], 4),
        (keys, weights[:0], 4),
        (keys, np.ones(3, dtype=np.float32), 4),
        (keys, np.frombuffer(bytes(7), dtype=np.uint8), 4),
        (keys, weights, 0),
        (bytes(65 * 64), np.ones(65, dtype=np.float32), 4),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.mixed_noise(given, factors, out, 1.0, 0.0, piece, 1)
    with pytest.raises(TypeError, match="7 arguments, not 3"):
        kernels.mixed_noise(keys, weights, out)  # type: ignore[call-arg]


@COMPILED
@pytest.mark.parametrize("decaying", [False, True])
@pytest.mark.parametrize("size", [1, 7, 4096, 40_000])
@pytest.mark.parametrize("grid", [0.0, 2.0**-10])
def test_recursive_noise_is_normal_noise_less_the_weighted_rows(
    decaying: bool, size: int, grid: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step, against the recursion written out in float64 on the values of `noise`."""
    rng = np.random.default_rng(size)
    weights = rng.uniform(0, 0.4, 3).astype(np.float32)
    decays = rng.uniform(0, 0.9, 3).astype(np.float32)[: 3 if decaying else 0]
    rows, expected = torch.zeros(3, size), np.zeros((3, size))
    for step in range(5):
        fresh, values = np.empty(size, dtype=np.float32), rng.normal(size=size).astype(np.float32)
        _normal.noise(SeededSource(step), [(fresh, 1.0, 0.0)])
        made = fresh - weights.astype(np.float64) @ expected
        if decaying:
            expected = decays[:, None].astype(np.float64) * expected + made
        else:
            expected[step % 3] = made
        wanted = np.rint(values / grid + 2.0 / grid * made) * grid if grid else 2.0 * made
        past = _normal.Past(rows, weights, decays, step % 3)
        _normal.recursive_noise(SeededSource(step), values, 2.0 / grid if grid else 2.0, grid, past)
        assert np.abs(values - wanted).max() <= 1e-5 + 1.01 * grid
        assert (
            np.abs(values - wanted) > 1e-5
        ).mean() < 0.02 + 1.5 / size  # where a sum lies between two values of the grid
        assert np.abs(rows.numpy() - expected).max() < 1e-5
    monkeypatch.setattr(_normal, "kernels", None)
    again, plain = rows.clone(), np.empty(size, dtype=np.float32)
    _normal.recursive_noise(SeededSource(9), plain, 1.0, 0.0, _normal.Past(again, weights, decays, 0))
    monkeypatch.undo()
    compiled = np.empty(size, dtype=np.float32)
    _normal.recursive_noise(SeededSource(9), compiled, 1.0, 0.0, _normal.Past(rows, weights, decays, 0))
    assert np.abs(plain - compiled).max() < 1e-5 and (rows - again).abs().max() < 1e-5


@COMPILED
def test_wrong_sizes_of_recursive_noise_are_refused() -> None:
    kernels = _normal.kernels
    assert kernels is not None
    keys, two, none = bytes(64), np.ones(2, dtype=np.float32), np.ones(0, dtype=np.float32)
    rows, out = torch.zeros(2, 6), np.empty(6, dtype=np.float32)
    kernels.recursive_noise(keys, two, none, rows, out, 1, 1.0, 0.0, 4, 1)
    kernels.recursive_noise(keys, two, two, rows, out, 0, 1.0, 0.0, 4, 1)
    for given, weights, decays, kept, at in (
        (keys[:32], two, none, rows, 0),
        (keys, two[:1], none, rows, 0),
        (keys, two, two[:1], rows, 0),
        (keys, two, none, rows[:, :5].contiguous(), 0),
        (keys, two, none, rows, 2),
        (keys, none, none, rows[:0], 0),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.recursive_noise(given, weights, decays, kept, out, at, 1.0, 0.0, 4, 1)
    with pytest.raises(TypeError, match="10 arguments, not 3"):
        kernels.recursive_noise(keys, two, none)  # type: ignore[call-arg]
