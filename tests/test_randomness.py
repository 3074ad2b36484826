"""The secure source: known answers, forks, threads, distributions (failing by chance less than once in 1e9)."""

from __future__ import annotations

import copy
import math
import os
import pickle
import threading

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.randomness import SecureSource, SeededSource, keystream

CHANCE = 1e-9


def close_to_normal(score: float) -> bool:
    """Whether a standard normal score is no surprise at the failure probability of these tests."""
    return abs(score) < stats.norm.isf(CHANCE / 2)


@pytest.fixture(scope="module")
def source() -> SecureSource:
    return SecureSource()


def test_keystream_is_aes_256_ctr_of_nist_sp_800_38a() -> None:
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    assert keystream(key, counter).update(plain) == cipher


def test_the_stream_does_not_depend_on_how_it_is_cut() -> None:
    whole, parts = SeededSource(1), SeededSource(1)
    assert whole.bytes(200_000) == parts.bytes(7) + parts.bytes(131_072) + parts.bytes(200_000 - 131_079)


def test_seeds_of_torch_and_numpy_change_nothing_and_streams_differ() -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        draws.append(SecureSource().bytes(32))
    assert draws[0] != draws[1]
    before = torch.get_rng_state()
    SecureSource().normal_(torch.empty(1000))
    assert torch.equal(before, torch.get_rng_state())


def test_the_key_cannot_be_read_pickled_or_copied(source: SecureSource) -> None:
    assert repr(source) == "SecureSource(...)"
    assert not any(isinstance(value, bytes | bytearray) for value in vars(source).values())
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            attempt(source)


def test_a_seeded_source_repeats_itself_and_says_it_is_not_secure() -> None:
    assert SeededSource(3).bytes(50) == SeededSource(3).bytes(50) != SeededSource(4).bytes(50)
    assert SecureSource.secure
    assert not SeededSource.secure
    with pytest.raises(ValueError, match="seed is 'x'"):
        SeededSource("x")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [SecureSource, lambda: SeededSource(5)])
def test_a_forked_child_never_sees_the_parents_stream(make: type[SecureSource]) -> None:
    source = make()
    source.bytes(5)
    held = threading.Event()
    release = threading.Event()

    def hold() -> None:
        with source._lock:
            held.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    read, write = os.pipe()
    pid = os.fork()  # while another thread holds the lock
    if pid == 0:
        os.write(write, source.bytes(4096))
        os._exit(0)
    release.set()
    holder.join()
    child = os.read(read, 4096)
    os.waitpid(pid, 0)
    os.close(read)
    os.close(write)
    ours = source.bytes(1 << 16)
    assert len(child) == 4096
    assert child[:32] not in ours
    assert ours[:32] not in child


def test_a_process_copied_behind_pythons_back_is_rekeyed() -> None:
    source = SeededSource(6)
    source._pid = -1
    assert source.bytes(32) != SeededSource(6).bytes(32)


def test_threads_share_the_stream_and_get_different_parts_of_it() -> None:
    source, words, sums = SecureSource(), [], []

    def work() -> None:
        values = torch.empty(50_001)
        for _ in range(20):
            words.append(source.words(1000))
            source.normal_(values)
            sums.append(values.double())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.unique(np.concatenate(words)).size == 80_000
    values = torch.cat(sums)
    assert close_to_normal(values.sum().item() / math.sqrt(values.numel()))
    assert len({row[:4].numpy().tobytes() for row in sums}) == len(sums)


def test_uniform_has_53_bits_and_excludes_both_ends(source: SecureSource) -> None:
    values = source.uniform(1_000_000)
    assert values.min() > 0
    assert values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > CHANCE
    assert np.unique((values * 2**53).astype(np.uint64) & np.uint64(0xFFF)).size == 4096


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 1000])
def test_integers_are_uniform(source: SecureSource, bound: int) -> None:
    counts = np.bincount(source.integers(bound, 200_000), minlength=bound)
    assert counts.size == bound
    if bound > 1:
        assert stats.chisquare(counts).pvalue > CHANCE


def test_integers_have_no_modulo_bias(source: SecureSource) -> None:
    bound = 3 << 61  # 2^64 mod bound is a quarter of 2^64: without rejection the low third would be twice as likely
    low = int((source.integers(bound, 30_000) < 1 << 61).sum())
    assert close_to_normal((low - 10_000) / math.sqrt(30_000 * 2 / 9))
    limits = np.array([1, 2, 3, 2**62 + 1])
    drawn = source.integers(np.repeat(limits, 1000), 4000).reshape(4, 1000)
    assert (drawn < limits[:, None]).all()
    with pytest.raises(ValueError, match="bound is 0"):
        source.integers(0, 1)


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.3, 0.97, 1.0])
def test_gaps_are_geometric(source: SecureSource, rate: float) -> None:
    gaps = source.gaps(rate, 200_000)
    assert gaps.min() >= 0
    for level in (1, 2, round(1 / rate), round(5 / rate)):
        chance = (1 - rate) ** level
        count = int((gaps >= level).sum())
        assert stats.binomtest(count, 200_000, chance).pvalue > CHANCE


def test_gaps_at_vanishing_rates_do_not_overflow(source: SecureSource) -> None:
    assert (source.gaps(1e-300, 10) == 2**62).all()
    with pytest.raises(ValueError, match="rate is 0"):
        source.gaps(0.0, 1)


def test_permutations_are_uniform(source: SecureSource) -> None:
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(12_000):
        order = tuple(source.permutation(4).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > CHANCE


@pytest.mark.parametrize(("population", "size"), [(30, 3), (5, 3), (4, 4), (3, 0)])
def test_choice_is_uniform_and_without_repetition(source: SecureSource, population: int, size: int) -> None:
    counts, draws = np.zeros(population), 6000
    first = np.zeros(population)
    for _ in range(draws):
        chosen = source.choice(population, size)
        assert np.unique(chosen).size == size
        counts[chosen] += 1
        if size:
            first[chosen[0]] += 1
    if 0 < size < population:
        scores = (counts - draws * size / population) / math.sqrt(draws * size / population * (1 - size / population))
        assert np.abs(scores).max() < stats.norm.isf(CHANCE / population)
    if size:
        assert stats.chisquare(first).pvalue > CHANCE


def test_choice_of_a_huge_population(source: SecureSource) -> None:
    chosen = source.choice(10**15, 1000)
    assert np.unique(chosen).size == 1000
    assert chosen.max() < 10**15
    with pytest.raises(ValueError, match="size is 4"):
        source.choice(3, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laplace(source: SecureSource, dtype: torch.dtype) -> None:
    values = source.laplace_(torch.empty(1000, 500, dtype=dtype), scale=2.0).double().numpy().ravel()
    assert stats.kstest(values, stats.laplace(scale=2.0).cdf).pvalue > CHANCE
    tail = 2.0 * math.log(50_000)
    assert stats.binomtest(int((np.abs(values) > tail).sum()), values.size, 1 / 50_000).pvalue > CHANCE


def test_half_precision_noise_is_refused(source: SecureSource) -> None:
    for draw in (source.normal_, source.laplace_):
        with pytest.raises(ValueError, match=r"float16; noise is drawn in float32"):
            draw(torch.empty(3, dtype=torch.float16))
    with pytest.raises(ValueError, match="std is nan"):
        source.normal_(torch.empty(3), std=math.nan)
