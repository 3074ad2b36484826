"""The secrets of a block of steps with correlated noise: a key of 32 bytes for each process that took some of them.

Everything about a block that must be made again follows from these keys: the fresh noise of every step so far, and
which group each record is in. So memory is one key however many steps there were, and a run that is resumed goes on
with the same block: it makes past noise again from the old keys and draws a key of its own for the steps to come.

Proof obligation. The noise of a step is never used twice. Step t of a block takes its fresh noise from stream t of the
key of the process that takes it. A process draws its key when it begins, so two processes that take a step of the same
number, because a ledger was put back to an older copy, have different noise. Within a process a position is used once
(`tacit.mechanisms.correlated`).

The keys are as secret as the records: with them and the released gradients the noise can be taken off. They are in the
memory of the process, and in a file beside the ledger if a checkpoint is written (`tacit.training.block_file`).
"""

from __future__ import annotations

import secrets
from typing import Any

from tacit.keyed_noise import KeyedSource
from tacit.randomness import Source


class BlockKeys:
    """The keys of one block: that of its groups, and those of its noise, each with the first step that it is for."""

    def __init__(self, source: Source) -> None:
        self.name = f"block-{secrets.token_hex(8)}"
        self.source, self._groups = source, bytearray(source.bytes(32))
        self._keys: list[tuple[int, bytearray]] = [(0, bytearray(source.bytes(32)))]

    def __repr__(self) -> str:
        return f"BlockKeys({self.name!r}, ...)"

    def __len__(self) -> int:
        return len(self._keys)

    def stream(self, number: int, step: int) -> KeyedSource:
        """Return noise ``number`` of the block, which is first used in step ``step``."""
        return KeyedSource(next(key for first, key in reversed(self._keys) if first <= step), number)

    def groups(self) -> KeyedSource:
        """Return the stream that the groups of the records are drawn from."""
        return KeyedSource(self._groups)

    def go_on(self, step: int) -> None:
        """Draw a new key for the steps from ``step`` on."""
        self._keys = [(first, key) for first, key in self._keys if first < step]
        self._keys.append((step, bytearray(self.source.bytes(32))))

    def written(self) -> dict[str, Any]:
        """Return the block's name and its keys as plain values; `read` is the inverse."""
        keys = [[first, key.hex()] for first, key in self._keys]
        return {"block": self.name, "groups": self._groups.hex(), "keys": keys}

    @classmethod
    def read(cls, values: Any, source: Source) -> BlockKeys:
        """Return the keys that `written` wrote; a ValueError if that is not what they are."""
        try:
            name, groups = str(values["block"]), bytearray.fromhex(values["groups"])
            pairs = [(int(first), bytearray.fromhex(key)) for first, key in values["keys"]]
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError("not the keys of a block.") from error
        firsts = [first for first, _ in pairs]
        lengths = {len(groups), *(len(key) for _, key in pairs)}
        if firsts != sorted(set(firsts)) or firsts[:1] != [0] or lengths != {32}:
            raise ValueError("not the keys of a block.")
        made = cls(source)
        made.name, made._groups, made._keys = name, groups, pairs
        return made
