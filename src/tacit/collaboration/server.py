"""The parameter server (Shokri & Shmatikov 2015, Figure 4): a state machine that trusts no participant and does no I/O.

Its state depends on the uploads and their order alone, so a transport can `check` an upload, write it down, `apply` it,
and come back from a crash by `ParameterServer.restore` and pushing the uploads again that it wrote down since.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.collaboration.messages import Download, Vector, check_fraction, portion
from tacit.collaboration.refusals import Reason, Refused
from tacit.collaboration.selection import largest

_LARGEST_VALUE = 0.5 * float(np.finfo(np.float32).max)
_LARGEST_UNIT = 1e20  # far from the end of float32, which a unit grown by 1/β at a time could reach


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of the parameter server: ``bound`` is γ, ``upload`` is θ_u, ``decay`` is β.

    The update counters are multiplied by β after every ``decay_every`` accepted uploads; with as many as there are
    participants that is once an epoch.
    """

    bound: float
    upload: float = 1.0
    decay: float = 0.8
    decay_every: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.bound, bool) or not isinstance(self.bound, int | float) or not 0 < self.bound < math.inf:
            raise ValueError(f"bound is {self.bound!r}; it must be a finite number above 0.")
        check_fraction("upload", self.upload)
        check_fraction("decay", self.decay)
        if isinstance(self.decay_every, bool) or not isinstance(self.decay_every, int) or self.decay_every < 1:
            raise ValueError(f"decay_every is {self.decay_every!r}; it must be a whole number, at least 1.")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The values of an upload and their places, checked without the sender and the parameters."""

    where: npt.NDArray[Any] | slice
    values: Vector


@dataclass(frozen=True, kw_only=True)
class Checked:
    """An upload that `ParameterServer.check` found nothing wrong with."""

    participant: str
    contents: Contents


class ParameterServer:
    """Global parameters that participants add to, and how often each was lately updated."""

    def __init__(self, initial: Vector, rules: Rules, participants: Iterable[str] = ()) -> None:
        vector = np.array(initial, dtype=np.float32)
        if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            raise ValueError(
                f"initial parameters have shape {vector.shape}; they must be one finite vector of at least one value."
            )
        self.rules = rules
        self._w = vector
        # No parameter is larger. Adding v, |v| ≤ γ, adds at most 2γ: either half a unit in the last place is at most γ,
        # or the sum rounds to what was there.
        self._reach = _reach(vector)
        self._stat = np.zeros(vector.size, dtype=np.float32)  # for order alone; half the memory of float64
        self._unit = 1.0  # what one update adds to _stat; growing it by 1/β decays all that was added before
        self._pushes = 0
        self._next: dict[str, int] = {}
        self._revoked: set[str] = set()
        for name in participants:
            self.admit(name)

    # -- who takes part ----------------------------------------------------------------------------------------------

    def admit(self, participant: str) -> None:
        """Accept uploads of ``participant`` from now on, beginning with sequence number 0."""
        if not isinstance(participant, str) or not participant:
            raise ValueError(f"participant is {participant!r}; it must be a name.")
        if participant in self._next:
            raise ValueError(f"participant {participant!r} is here already; names must differ.")
        self._next[participant] = 0

    def revoke(self, participant: str) -> None:
        """Accept nothing more of ``participant``; what was added stays."""
        if participant not in self._next:
            raise ValueError(f"participant {participant!r} is not known; admit it first.")
        self._revoked.add(participant)

    def next_sequence(self, participant: str) -> int:
        """Return the sequence number that the next upload of ``participant`` must have."""
        if participant not in self._next:
            raise ValueError(f"participant {participant!r} is not known; admit it first.")
        return self._next[participant]

    # -- the protocol ------------------------------------------------------------------------------------------------

    def pull(self, fraction: float = 1.0) -> Download:
        """Return the latest values of that fraction of the parameters (θ_d) which were updated most."""
        found = self.peek(fraction)
        return Download(indices=None, values=found.values.copy()) if found.indices is None else found

    def peek(self, fraction: float) -> Download:
        """As `pull`, but the whole is not copied: its values are to be read before the next upload."""
        check_fraction("fraction", fraction)
        count = portion(fraction, self._w.size)
        if count == self._w.size:
            return Download(indices=None, values=self._w)
        indices = largest(self._stat, count)
        return Download(indices=indices, values=self._w[indices])

    def peek_part(self, first: int, count: int) -> Download:
        """Return ``count`` parameters from ``first`` on, without a copy: to be read before the next upload."""
        return Download(indices=None, values=self._w[first : first + count])

    def push(
        self, participant: str, sequence: int, indices: npt.NDArray[Any] | None, values: npt.NDArray[np.float32]
    ) -> None:
        """Add ``values`` to the parameters at ``indices``, None for all, or raise `Refused` and change nothing.

        Every sequence number is applied exactly once and in order. A sender that got no answer sends the same upload
        again and is refused as `Reason.REPLAYED` if it had been applied.
        """
        self.apply(self.check(participant, sequence, indices, values))

    def check(
        self, participant: str, sequence: int, indices: npt.NDArray[Any] | None, values: npt.NDArray[np.float32]
    ) -> Checked:
        """Check an upload, the first half of `push`: change nothing. A transport writes down what passes.

        One with many uploads at hand can do the parts of it one by one: `check_sender`, `inspect` (which looks at
        nothing that ever changes, so that any thread may), and `check_sum` unless there is `headroom` for all.
        """
        self.check_sender(participant, sequence)
        contents = self.inspect(indices, values)
        self.check_sum(contents)
        return Checked(participant=participant, contents=contents)

    def apply(self, upload: Checked) -> None:
        """Add a checked upload, the second half of `push`."""
        where = upload.contents.where
        if not isinstance(where, slice):
            where = where.astype(np.intp, copy=False)  # once: NumPy would do it for every use
        self._w[where] += upload.contents.values
        self._stat[where] += np.float32(self._unit)
        self._reach += 2 * self.rules.bound
        self._next[upload.participant] += 1
        self._pushes += 1
        if self._pushes % self.rules.decay_every == 0:
            self._decay()

    def headroom(self, uploads: int) -> bool:
        """Return True if so many uploads, whatever is in them, leave all parameters finite."""
        more = 2 * uploads * self.rules.bound
        if self._reach + more >= _LARGEST_VALUE:
            self._reach = _reach(self._w)
        return self._reach + more < _LARGEST_VALUE

    def check_sum(self, contents: Contents) -> None:
        """Refuse what would leave a parameter that is not finite."""
        with np.errstate(over="ignore"):
            total = self._w[contents.where] + contents.values
        if not np.isfinite(total).all():
            raise Refused(Reason.OVERFLOW, "a parameter would no longer be finite.")

    def check_sender(self, participant: str, sequence: int) -> None:
        """Refuse a participant that may not send, or not this number."""
        if not isinstance(participant, str) or participant not in self._next:
            raise Refused(Reason.UNKNOWN, f"participant {str(participant)[:80]!r} is not known; it must be admitted.")
        if participant in self._revoked:
            raise Refused(Reason.REVOKED, f"participant {participant!r} was revoked; nothing more is taken from it.")
        if isinstance(sequence, bool) or not isinstance(sequence, int):
            raise Refused(Reason.TYPE, f"sequence is {str(sequence)[:80]!r}; it must be a whole number.")
        due = self._next[participant]
        if sequence < due:
            raise Refused(Reason.REPLAYED, f"sequence is {sequence}; it was applied before, the next is {due}.")
        if sequence > due:
            raise Refused(Reason.REORDERED, f"sequence is {sequence}; uploads come in order, the next is {due}.")

    def inspect(self, indices: npt.NDArray[Any] | None, values: npt.NDArray[Any]) -> Contents:
        """Refuse a malformed upload, or one against the rules. Depends on nothing that changes."""
        for name, array in (("values", values), *(() if indices is None else (("indices", indices),))):
            if not isinstance(array, np.ndarray):
                raise Refused(Reason.TYPE, f"{name} is a {type(array).__name__}; it must be an array.")
            if array.ndim != 1:
                raise Refused(Reason.SHAPE, f"{name} has {array.ndim} dimensions; it must have one.")
        if values.dtype != np.float32:
            raise Refused(Reason.TYPE, f"values are {values.dtype}; they must be float32.")
        size, most = self._w.size, self.most
        if values.size > most:
            raise Refused(
                Reason.TOO_MANY,
                f"there are {values.size} values; an upload has at most {most}, {self.rules.upload:g} of {size}.",
            )
        if indices is None and values.size != size:
            raise Refused(Reason.SHAPE, f"there are {values.size} values for the whole; it has {size} parameters.")
        where = slice(None) if indices is None else self._places(indices, values.size)
        if values.size:
            highest = float(max(values.max(), -values.min()))  # NaN if there is one
            if not math.isfinite(highest):
                raise Refused(Reason.NOT_FINITE, "a value is not finite.")
            if highest > self.rules.bound:
                raise Refused(Reason.BOUND, f"a value has size {highest:g}; the bound is {self.rules.bound:g}.")
        return Contents(where=where, values=values)

    def _places(self, indices: npt.NDArray[Any], values: int) -> npt.NDArray[Any] | slice:
        """Return different positions within the model for so many values, or refuse them."""
        size = self._w.size
        if indices.dtype.kind not in "iu":
            raise Refused(Reason.TYPE, f"indices are {indices.dtype}; they must be whole numbers.")
        if indices.size != values:
            raise Refused(Reason.SHAPE, f"there are {indices.size} indices and {values} values; one for each.")
        if not values:
            return indices
        rising = bool((indices[1:] > indices[:-1]).all())
        low, high = (indices[0], indices[-1]) if rising else (indices.min(), indices.max())
        if low < 0 or high >= size:
            raise Refused(
                Reason.RANGE, f"index {low if low < 0 else high} is out of range; there are {size} parameters."
            )
        if not rising:
            counts = np.bincount(indices.astype(np.int64), minlength=size)
            if counts.max() > 1:
                raise Refused(Reason.DUPLICATE, f"index {int(np.argmax(counts > 1))} occurs more than once.")
        return slice(None) if rising and indices.size == size else indices

    def _decay(self) -> None:
        """stat := β · stat, by letting one update count for 1/β as much as before; the order of stat is the same."""
        self._unit /= self.rules.decay
        if self._unit > _LARGEST_UNIT:
            self._stat /= np.float32(self._unit)
            self._unit = 1.0

    # -- what it holds -----------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Vector:
        """Return a copy of w_global."""
        return self._w.copy()

    @property
    def stat(self) -> npt.NDArray[np.float32]:
        """Return a copy of the update counters, decayed."""
        return self._stat / np.float32(self._unit)

    @property
    def size(self) -> int:
        """Return how many parameters there are."""
        return self._w.size

    @property
    def most(self) -> int:
        """Return how many entries an upload may have."""
        return portion(self.rules.upload, self._w.size)

    @property
    def revoked(self) -> frozenset[str]:
        """Return the names of whom nothing more is taken."""
        return frozenset(self._revoked)

    @property
    def participants(self) -> Mapping[str, int]:
        """Return everybody who was admitted, with the number of uploads taken from each."""
        return dict(self._next)

    def snapshot(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        """Return the whole state: its arrays themselves, to be read before the next upload, and what fits in JSON.

        The agreed rules are not part of it.
        """
        facts = {"unit": self._unit, "pushes": self._pushes, "next": dict(self._next), "revoked": sorted(self._revoked)}
        return {"parameters": self._w, "stat": self._stat}, facts

    @classmethod
    def restore(cls, arrays: Mapping[str, Vector], facts: Mapping[str, Any], rules: Rules) -> ParameterServer:
        """Return a server in the state of a `snapshot`, bit for bit."""
        server = cls(arrays["parameters"], rules)
        stat = np.array(arrays["stat"], dtype=np.float32)
        if stat.shape != server._w.shape or not (np.isfinite(stat).all() and (stat >= 0).all()):
            raise ValueError(f"stat has shape {stat.shape}; a snapshot has one finite counter for each parameter.")
        server._stat, server._unit, server._pushes = stat, float(facts["unit"]), int(facts["pushes"])
        server._next = {str(name): int(due) for name, due in facts["next"].items()}
        server._revoked = {str(name) for name in facts["revoked"]}
        return server


def _reach(vector: Vector) -> float:
    return float(np.abs(vector).max())
