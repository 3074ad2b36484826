"""The secure stream: known answers on our own path, keys that stay secret, forks, workers, threads, correlations.

Statistics fail by chance once in 1e9.
"""

from __future__ import annotations

import base64
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from scipy import stats
from torch.utils.data import TensorDataset

import tacit
from tacit.mechanisms import Discrete, Flat, PerLayer, Proportional
from tacit.mechanisms.discrete import draw
from tacit.randomness import SecureSource, SeededSource, Source, keystream

CHANCE = 1e-9


class Keyed(Source):
    """A source with a known key."""

    secure = False

    def __init__(self, key: bytes) -> None:
        self._known = key
        super().__init__()

    def _key(self, *, forked: bool) -> bytes:
        return self._known


# -- known answers -----------------------------------------------------------------------------------------------------


def test_the_four_blocks_of_nist_sp_800_38a_f_5_5_are_the_keystream() -> None:
    """The output blocks that the standard prints: what our zeros are turned into."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    blocks = bytes.fromhex(
        "0bdf7df1591716335e9a8b15c860c5025a6e699d536119065433863c8f657b94"
        "1bc12c9c01610d5d0d8bd6a3378eca622956e1c8693536b1bee99c73a31576b6"
    )
    stream = keystream(key, bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"))
    assert stream.update(bytes(64)) == blocks


def test_a_source_gives_the_known_answers_of_aes_256() -> None:
    """Key zero, counters 0, 1 and 2: the hash key, the tag and the ciphertext of AES-256-GCM's test cases 13 and 14."""
    expected = bytes.fromhex(
        "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738bcea7403d4d606b6e074ec5d3baf39d18"
    )
    assert Keyed(bytes(32)).bytes(48) == expected
    assert Keyed(bytes(32)).words(6).tobytes() == expected


def test_the_whole_stream_is_aes_of_a_counter() -> None:
    """Across the pieces in which it is made, counted block by block."""
    key = bytes(range(32))
    blocks = 3 * 4096 + 5
    counters = b"".join(number.to_bytes(16, "big") for number in range(blocks))
    expected = Cipher(AES(key), ECB()).encryptor().update(counters)
    source = Keyed(key)
    pieces = [1, 15, 16, 17, 65_535, 65_536, 65_537]
    made = b"".join(source.bytes(size) for size in pieces)
    assert made + source.bytes(16 * blocks - len(made)) == expected


# -- the key -----------------------------------------------------------------------------------------------------------


def test_the_key_is_256_bits_of_the_operating_system_and_new_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    genuine = os.urandom

    def spy(size: int) -> bytes:
        asked.append(size)
        return genuine(size)

    monkeypatch.setattr(os, "urandom", spy)
    streams = {SecureSource().bytes(32) for _ in range(20)}
    assert asked == [32] * 20
    assert len(streams) == 20


def test_the_key_reaches_no_log_no_ledger_and_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    key = bytes(np.random.default_rng(5).integers(0, 256, 32, dtype=np.uint8))
    monkeypatch.setattr(SecureSource, "_key", lambda self, *, forked: key)
    caplog.set_level(logging.DEBUG)
    data = TensorDataset(torch.randn(60, 4), torch.arange(60) % 3)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = tacit.make_private(
        model,
        optimizer,
        data,
        lot_size=20,
        steps=3,
        clipping=Flat(1.0),
        noise_multiplier=1.0,
        ledger=tmp_path / "ledger",
    )
    for x, y in run.batches():
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    run.save(tmp_path / "checkpoint")
    text = repr(run) + repr(run._source) + str(vars(run._source)) + run.statement(1e-5) + caplog.text
    text += "".join(capfd.readouterr())
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()) + text.encode()
    assert len(written) > 2000
    for form in (
        key,
        key.hex().encode(),
        base64.b64encode(key)[:42],
        repr(list(key)).encode(),
        repr(key).encode()[2:-1],
    ):
        assert form not in written
    states = Keyed(key).bytes(64)
    assert states[:16] not in written


# -- processes ---------------------------------------------------------------------------------------------------------


def _overlaps(streams: list[bytes]) -> bool:
    """Whether two streams share a block of 16 bytes at any multiple of 8."""
    seen: dict[bytes, int] = {}
    for number, stream in enumerate(streams):
        for at in range(0, len(stream) - 15, 8):
            if seen.setdefault(stream[at : at + 16], number) != number:
                return True
    return False


def _forked(source: Source, size: int, then: int = 0) -> Iterator[bytes]:
    """What a forked child draws, and its own children after it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, source.bytes(size))
            for stream in _forked(source, size, then - 1) if then else ():
                os.write(write, stream)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        drawn = pipe.read()
    os.waitpid(pid, 0)
    yield from (drawn[at : at + size] for at in range(0, len(drawn), size))


@pytest.mark.parametrize("make", [SecureSource, lambda: SeededSource(5)], ids=["secure", "seeded"])
def test_siblings_and_grandchildren_have_streams_of_their_own(make: type[SecureSource]) -> None:
    source = make()
    streams = [source.bytes(4096), *_forked(source, 4096, then=2), *_forked(source, 4096), source.bytes(4096)]
    assert [len(stream) for stream in streams] == [4096] * 6
    assert not _overlaps(streams)


def test_the_test_would_notice_a_child_that_goes_on_with_its_parents_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SecureSource()
    monkeypatch.setattr(SecureSource, "_rekey", lambda self, *, forked: setattr(self, "_pid", os.getpid()))
    assert _overlaps([*_forked(source, 4096), source.bytes(4096)])


WORKERS = """
import sys, torch
from torch.utils.data import DataLoader, Dataset
from tacit.randomness import SecureSource, SeededSource

class Drawing(Dataset):  # draws from a source it shares with everyone: what a careless user might do
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.frombuffer(bytearray(source.bytes(512)), dtype=torch.uint8)

source = {source}
streams = [source.bytes(512)]
for _ in range(2):  # new workers each time
    loader = DataLoader(Drawing(), batch_size=8, num_workers=2, multiprocessing_context="fork", timeout=60)
    streams += [row.numpy().tobytes() for batch in loader for row in batch]
streams.append(source.bytes(512))
print(*(stream.hex() for stream in streams))
"""

POOL = """
import multiprocessing, torch
from tacit.mechanisms.discrete import draw
from tacit.randomness import SecureSource

source = SecureSource()

def noise(_):
    return source.normal_(torch.empty(500)).numpy().tobytes() + draw(1e6, 300, source).tobytes()

with multiprocessing.get_context("fork").Pool(2) as pool:
    streams = pool.map_async(noise, range(8), chunksize=1).get(60)
print(*(stream.hex() for stream in [*streams, noise(0)]))
"""


def _streams(script: str) -> list[bytes]:
    """What a fresh interpreter draws. Threads of other tests' servers, which do not survive a fork, are not in it."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [bytes.fromhex(stream) for stream in done.stdout.split()]


@pytest.mark.parametrize("source", ["SecureSource()", "SeededSource(5)"], ids=["secure", "seeded"])
def test_forked_workers_of_a_data_loader_have_streams_of_their_own(source: str) -> None:
    streams = _streams(WORKERS.replace("{source}", source))
    assert len(streams) == 130
    assert not _overlaps(streams)


def test_forked_pools_draw_different_noise() -> None:
    streams = _streams(POOL)
    assert len(streams) == 9
    assert not _overlaps(streams)


# -- threads -----------------------------------------------------------------------------------------------------------


def test_threads_cut_one_stream_into_pieces_with_nothing_twice_and_nothing_lost() -> None:
    source, pieces = SeededSource(11), []
    barrier = threading.Barrier(4)

    def work(size: int) -> None:
        barrier.wait()
        for _ in range(200):
            pieces.append(source.bytes(size))

    threads = [threading.Thread(target=work, args=(size,)) for size in (16, 48, 1600, 66_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = SeededSource(11).bytes(sum(map(len, pieces)))
    places = sorted((whole.index(piece), len(piece)) for piece in pieces)
    at = 0
    for place, size in places:
        assert place == at
        at += size
    assert at == len(whole)


def test_threads_that_draw_discrete_noise_get_different_values() -> None:
    source, drawn = SecureSource(), []

    def work() -> None:
        for _ in range(5):
            drawn.append(draw(1e9, 4000, source))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not _overlaps([values.tobytes() for values in drawn])
    together = np.concatenate(drawn) / 1e9
    assert abs((together**2 - 1).sum()) < stats.norm.isf(CHANCE / 2) * math.sqrt(2 * together.size)


# -- statistics --------------------------------------------------------------------------------------------------------


def test_bytes_bits_and_pairs_are_uniform() -> None:
    raw = np.frombuffer(SecureSource().bytes(4_000_000), dtype=np.uint8)
    assert stats.chisquare(np.bincount(raw, minlength=256)).pvalue > CHANCE
    pairs = raw[0::2].astype(np.int64) * 256 + raw[1::2]
    assert stats.chisquare(np.bincount(pairs, minlength=65_536)).pvalue > CHANCE
    bits = np.unpackbits(raw[:1_000_000])
    assert stats.binomtest(int(bits.sum()), bits.size).pvalue > CHANCE
    runs = int((bits[1:] != bits[:-1]).sum())
    assert stats.binomtest(runs, bits.size - 1).pvalue > CHANCE
    ones = bits.reshape(-1, 64).sum(axis=1)
    assert stats.kstest(ones + np.random.default_rng().uniform(-0.5, 0.5, ones.size), _binomial).pvalue > CHANCE


def _binomial(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """The distribution of a binomial number of 64 bits, spread evenly over ±1/2."""
    below = np.floor(x + 0.5)
    return np.asarray(stats.binom.cdf(below - 1, 64, 0.5) + (x + 0.5 - below) * stats.binom.pmf(below, 64, 0.5))


def _largest_correlation(rows: np.ndarray) -> float:  # type: ignore[type-arg]
    """Between any two rows, in standard deviations, over the values and over their squares."""
    largest = 0.0
    for values in (rows, (rows**2 - 1) / math.sqrt(2)):
        products = values @ values.T / math.sqrt(values.shape[1])
        largest = max(largest, float(np.abs(products[~np.eye(len(products), dtype=bool)]).max()))
    return largest


SHAPES = {
    f"{layer}.{kind}": torch.Size([100, 100]) for layer in ("conv1", "conv2", "fc") for kind in ("weight", "bias")
}


@pytest.mark.parametrize("noise", [Proportional(1.0), Discrete(Proportional(1.0))], ids=["gaussian", "discrete"])
def test_noise_of_parameters_steps_and_ranks_is_uncorrelated(noise: Proportional | Discrete) -> None:
    """Six parameters in three groups, four steps, three sources: 72 vectors, no two of them alike."""
    rows = []
    for source in (SecureSource(), SecureSource(), SecureSource()):
        clipping = PerLayer(total=1.0).bind(SHAPES)
        ledger = tacit.Ledger()
        for _ in range(4):
            queries = clipping.queries(noise)
            receipt = ledger.record(tacit.ledger.Step(tacit.ledger.Everyone(), queries))
            sums = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
            clipping.release_(receipt, sums, source)
            rows += [total.double().numpy().ravel() / queries[0].noise_std for total in sums.values()]
    table = np.stack(rows)
    comparisons = 2 * len(rows) * (len(rows) - 1) / 2
    limit = float(stats.norm.isf(CHANCE / 2 / comparisons)) * 1.15  # products have heavier tails than normal ones
    assert _largest_correlation(table) < limit
    table[5] = table[40]
    assert _largest_correlation(table) > 10 * limit


def test_the_same_key_in_two_ranks_would_be_noticed() -> None:
    one, two = (SeededSource(3).normal_(torch.empty(10_000)).double().numpy() for _ in range(2))
    assert _largest_correlation(np.stack([one, two])) > 50
