"""The compiled keystream, by each version of it, beside known answers and `cryptography`."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import pytest

from kernels.conftest import built
from tacit._aes import compared, keystream

pytestmark = pytest.mark.parametrize("arithmetic", ["plain", "avx2", "avx512"], indirect=True)


@pytest.fixture
def kernels(arithmetic: str) -> Any:
    compiled = built(arithmetic)
    if not compiled.aes:
        pytest.skip("this processor has no instructions for AES")
    return compiled


def stream(kernels: Any, key: bytes, size: int) -> bytes:
    out = bytearray(b"x" * size)
    kernels.keystream(key, out)
    return bytes(out)


@pytest.mark.parametrize(
    ("key", "blocks"),
    [
        # AES-256-GCM, test cases 13 and 14: the hash key, the tag and the ciphertext
        (
            "00" * 32,
            "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738bcea7403d4d606b6e074ec5d3baf39d18",
        ),
        # The Advanced Encryption Standard Algorithm Validation Suite, KeySbox and VarKey: zeros encrypted
        ("c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558", "46f2fb342d6f0ab477476fc501242c5f"),
        ("80" + "00" * 31, "e35a6dcb19b201a01ebcfa8aa22b5759"),
        ("ff" * 32, "4bf85f1b5d54adbc307b0a048389adcb"),
    ],
)
def test_known_answers(kernels: Any, key: str, blocks: str) -> None:
    assert stream(kernels, bytes.fromhex(key), len(blocks) // 2).hex() == blocks


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 64, 511, 512, 513, 1024, 4095, 4096, 4112, 65_536, 2**21 + 33])
def test_any_number_of_bytes_is_that_of_cryptography(kernels: Any, size: int) -> None:
    """Also beyond 2^8 and 2^16 blocks, where the bytes of the counter carry."""
    for _ in range(5):
        key = os.urandom(32)
        assert stream(kernels, key, size) == keystream(key).update(bytes(size))


def test_every_bit_of_the_key_counts(kernels: Any) -> None:
    keys = [bytes(32), *((1 << bit).to_bytes(32, "big") for bit in range(256))]
    assert [stream(kernels, key, 32) for key in keys] == [keystream(key).update(bytes(32)) for key in keys]


class Wrong:
    """AES that is wrong in one bit."""

    aes = 1

    def __init__(self, byte: int) -> None:
        self._byte = byte

    def keystream(self, key: bytes, out: bytearray) -> None:
        out[:] = keystream(key).update(bytes(len(out)))
        out[self._byte] ^= 1


@pytest.mark.parametrize("byte", [0, 4096, 16 * 8192 - 1])
def test_a_wrong_cipher_is_found_out_and_not_used(byte: int, caplog: pytest.LogCaptureFixture) -> None:
    assert compared(Wrong(byte), 8192) is None  # type: ignore[arg-type]
    assert "differs from cryptography's" in caplog.text


def test_a_right_cipher_is_used(kernels: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert compared(kernels, 8192) is kernels
    assert not caplog.text


@pytest.mark.usefixtures("kernels")
def test_without_instructions_and_without_a_compiler_arrays_are_used(
    arithmetic: str, caplog: pytest.LogCaptureFixture
) -> None:
    without = built(arithmetic, "-DAES=none")
    assert not without.aes
    for attempt in (
        lambda: without.keystream(bytes(32), bytearray(16)),
        lambda: without.noise(bytes(32), np.zeros(1, dtype=np.float32), 1.0, 0.0, 1, 1),
    ):
        with pytest.raises(RuntimeError, match="no instructions for AES"):
            attempt()
    assert compared(without, 8192) is None
    assert compared(None, 8192) is None
    assert not caplog.text


def test_keys_of_another_length_are_refused(kernels: Any) -> None:
    for size in (0, 16, 31, 33):
        with pytest.raises(ValueError, match="key of 32 bytes"):
            kernels.keystream(bytes(size), bytearray(16))
    with pytest.raises(TypeError, match="2 arguments, not 1"):
        kernels.keystream(bytes(32))
    with pytest.raises(BufferError):
        kernels.keystream(bytes(32), bytes(16))
