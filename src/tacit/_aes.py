"""AES-256 in counter mode: by `cryptography`, and by the compiled loops once they have been seen to do the same."""

from __future__ import annotations

import logging
import os

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from tacit._compiled import Buffer, Kernels

log = logging.getLogger("tacit")

KEY_BYTES = 32


def keystream(key: Buffer, counter: bytes = bytes(16)) -> CipherContext:
    """Encrypting zeros gives the keystream."""
    return Cipher(AES(key), CTR(counter)).encryptor()


def compared(kernels: Kernels | None, blocks: int) -> Kernels | None:
    """``kernels`` where their first ``blocks`` of a random key are those of `cryptography`, and None otherwise.

    A cipher of our own is not taken on trust, nor is what a compiler or an emulated processor makes of it.
    """
    if kernels is None or not kernels.aes:
        return None
    key, found = os.urandom(KEY_BYTES), bytearray(16 * blocks)
    kernels.keystream(key, found)
    if keystream(key).update(bytes(len(found))) == found:
        return kernels
    log.warning("the compiled AES differs from cryptography's; noise is made without it, more slowly.")
    return None
