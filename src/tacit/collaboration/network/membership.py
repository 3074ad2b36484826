"""A participant in a collaboration over a network: download, train, upload, and survive whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from tacit.collaboration.exchange import Protocol
from tacit.collaboration.messages import Download, Upload
from tacit.collaboration.network import codec
from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.codec import Piece
from tacit.collaboration.network.link import Link
from tacit.collaboration.network.outbox import Letter, Outbox, Position
from tacit.collaboration.participant import Participant
from tacit.collaboration.refusals import Reason, Refused

log = logging.getLogger("tacit")

_OWN = ("collaboration", "start", "stop")
_SHARED = tuple(field.name for field in fields(Agreement) if field.name not in _OWN)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A server and the parameters it owns; ``due`` is the number of the upload that it expects next."""

    link: Link
    agreement: Agreement
    due: int


def find_shards(links: Sequence[Link]) -> list[Shard]:
    """Ask all servers what they own; together it must be all parameters, once, under the same rules."""
    answers = [(link, *link.agree()) for link in links]
    shards = sorted(
        (Shard(link=link, agreement=agreement, due=due) for link, due, agreement in answers),
        key=lambda shard: shard.agreement.start,
    )
    first = shards[0].agreement
    for shard in shards[1:]:
        for name in _SHARED:
            own, other = getattr(shard.agreement, name), getattr(first, name)
            if own != other:
                raise ValueError(
                    f"{name} is {own!r} on {shard.link.address}, {other!r} on {shards[0].link.address}; the servers "
                    "of one collaboration must agree."
                )
    place = 0
    for shard in shards:
        if shard.agreement.start != place:
            raise ValueError(f"no server, or more than one, owns parameter {min(place, shard.agreement.start)}.")
        place = shard.agreement.stop
    if place != first.parameters:
        raise ValueError(f"no server owns parameter {place}; name all servers of the collaboration.")
    if len(shards) > 1 and (first.protocol is not Protocol.ASYNCHRONOUS or first.pool):
        raise ValueError("several servers cannot keep one order; they need --protocol asynchronous and no --pool.")
    return shards


def identity(shards: Sequence[Shard]) -> str:
    """Return the identity of the collaboration: of its server, or of all of them together."""
    names = [shard.agreement.collaboration for shard in shards]
    return names[0] if len(names) == 1 else hashlib.sha256(json.dumps(names).encode()).hexdigest()


def open_outbox(folder: Path, name: str, shards: Sequence[Shard]) -> Outbox:
    """Return the outbox of ``name`` in a collaboration; refuse it if the servers' agreement is another than before."""
    outbox = Outbox(folder, participant=name, collaboration=identity(shards))
    now = [json.loads(shard.agreement.to_json()) for shard in shards]
    before = json.loads(outbox.remember("agreement", json.dumps(now)))
    pairs = zip(before, now, strict=False)
    changed = sorted({key for old, new in pairs for key in new if old.get(key) != new[key]})
    if len(before) != len(now):  # one server can call itself what several are called together
        changed = ["number of servers"]
    if changed:
        outbox.close()
        raise ValueError(
            f"the servers have another {', '.join(changed)} than when {folder} was begun; nothing was sent. Ask "
            "their operator why."
        )
    return outbox


class Membership:
    """``participant`` among ``shards``, its state in ``outbox``; made anew after a crash, it goes on from there.

    ``charged`` says how many steps the participant's ledger has. ``lost_key`` says that another key holder may have
    uploaded under this name: the servers' count is then gone on with. ``older_server`` says that a server was put back
    from a backup: the numbers of the uploads that it has lost are given up.
    """

    def __init__(
        self,
        participant: Participant,
        shards: Sequence[Shard],
        outbox: Outbox,
        *,
        download: float = 1.0,
        charged: Callable[[], int] = lambda: 0,
        lost_key: bool = False,
        older_server: bool = False,
    ) -> None:
        self.participant, self._shards, self._download = participant, list(shards), download
        self.lost = 0
        self.company: set[str] = set()  # who was in the rounds of masked uploads, oneself included
        self.outbox, self._charged = outbox, charged
        position = self.outbox.position()
        if position is not None:
            participant.resume(sequence=position.sequence, steps=position.steps, parameters=position.parameters)
        else:
            participant.sequence = outbox.foreign
        try:
            if lost_key:
                self._skip_foreign()
            if older_server:
                self._give_up_lost()
            self._check_due()
        except (ValueError, Refused):
            self.outbox.close()
            raise

    def _check_due(self) -> None:
        """Servers and folder must remember the same uploads, but for those that were not acknowledged.

        In a pool the server counts finished rounds only, so there it may know fewer.
        """
        pooled = self._shards[0].agreement.pool > 0
        for part, shard in enumerate(self._shards):
            least = self._first_unsent(part)
            if shard.due < least and not pooled:
                raise ValueError(
                    f"the server {shard.link.address} expects upload {shard.due} but has acknowledged all before "
                    f"{least}; it has lost some of its state. If its operator has put it back from a backup, and "
                    "says so, join with --older-server: those uploads stay charged and are not sent again."
                )
            if shard.due > self.participant.sequence:
                raise ValueError(
                    f"the server {shard.link.address} has {shard.due} uploads of {self.participant.name!r}, the folder "
                    f"{self.outbox.folder} {self.participant.sequence}; it is an old copy, or another participant has "
                    "the same name. Put the newest copy back; or, if your key was lost and this folder and its ledger "
                    "are the newest, have its certificate revoked and join with a new one and --after-lost-key."
                )

    def _first_unsent(self, part: int) -> int:
        """Return the number of the first upload that this server has not acknowledged."""
        waiting = [letter.sequence for letter in self.outbox.unsent() if letter.part == part]
        return min(waiting, default=self.participant.sequence)

    def _give_up_lost(self) -> None:
        """Send an empty upload for every number that a server put back from a backup has lost.

        Each number is still applied once: those that were lost are now taken, with nothing in them, so that no copy of
        what was lost is ever applied. What was released stays released, and its charge stays in the ledger; nothing is
        drawn and nothing charged here. A server that lies about a backup gains nothing: it gets empty uploads.
        """
        nothing = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        for part, shard in enumerate(self._shards):
            if shard.agreement.pool:
                continue
            first = self._first_unsent(part)
            for number in range(shard.due, first):
                shard.link.push(shard.link.turn(), codec.pack_upload(number, *nothing, size=shard.agreement.size))
            if shard.due < first:
                log.warning(
                    "%s had lost uploads %d to %d; they stay charged and are given up",
                    shard.link.address,
                    shard.due,
                    first - 1,
                )
                self._shards[part] = replace(shard, due=first)

    def _skip_foreign(self) -> None:
        """Go on after uploads that another key holder made under this name.

        The ledger stays as it is: it lists what this participant released. An upload whose number is
        taken is sent under the next one, with the same values: its noise is not drawn again.
        """
        if len(self._shards) > 1:
            raise ValueError(
                "after a lost key only one server can be gone on with: each of several may have taken other uploads. "
                "Begin another collaboration, and continue this ledger in it (--ledger)."
            )
        shard, own = self._shards[0], self.participant.sequence
        letters = self.outbox.unsent() if not shard.agreement.pool else []
        for letter in list(letters):
            if letter.sequence < shard.due and self._is_taken(letter):
                self.outbox.acknowledged(letter)
                letters.remove(letter)
        first = max(shard.due, letters[0].sequence if letters else own)
        bodies = [
            codec.pack_upload(number, *codec.unpack_upload(self.outbox.body(letter), size=shard.agreement.size)[1:],
                              size=shard.agreement.size)
            for number, letter in enumerate(letters, first)
        ]  # fmt: skip
        skipped = first + len(letters) - own
        if skipped > 0:
            self.outbox.renumber(letters, bodies, first=first, skipped=skipped)
            self.participant.sequence = own + skipped
            log.warning(
                "%d uploads under the name %s are not ours; going on after them", skipped, self.participant.name
            )

    def _is_taken(self, letter: Letter) -> bool:
        """Return whether the server has this very upload under its number."""
        try:
            self._shards[letter.part].link.call("Push", codec.pack_token(0) + self.outbox.body(letter))
        except Refused as refusal:
            if refusal.reason is not Reason.REPLAYED:
                raise
            return False
        return True

    @property
    def done(self) -> int:
        """Return the number of own uploads so far, those included that are still in the outbox."""
        return self.participant.sequence - self.outbox.foreign

    def start_from_server(self) -> None:
        """Make the latest global parameters one's own."""
        self.participant.parameters.vector[:] = self._pull(1.0).values

    def exchange(self) -> None:
        """Send what was left unsent, download, train for an epoch and upload, until all of it is acknowledged."""
        self.deliver()
        tokens = [shard.link.turn() for shard in self._shards]
        try:
            self.participant.begin(self._pull(self._download))
            self.participant.train()
            self.keep(self._bodies(self.participant.finish()))
        except BaseException:  # nothing is sent; an error, a full disk or Ctrl-C here must not stop the others
            for shard, token in zip(self._shards, tokens, strict=True):
                shard.link.give_back(token)
            raise
        self.deliver(tokens)

    def keep(self, bodies: Sequence[Sequence[Piece]], *, round_id: bytes | None = None) -> None:
        """Put an upload into the outbox, on the disk, before anything is sent."""
        person = self.participant
        position = Position(
            sequence=person.sequence,
            steps=person.steps,
            parameters=person.parameters.vector,
            charged=self._charged(),
        )
        self.outbox.put(bodies, position, round_id=round_id)

    def deliver(self, tokens: Sequence[int] | None = None) -> None:
        """Send what is in the outbox, exactly as it is there."""
        for letter in self.outbox.unsent():
            link = self._shards[letter.part].link
            token = tokens[letter.part] if tokens is not None else link.turn()
            link.push(token, self.outbox.body(letter))
            self.outbox.acknowledged(letter)

    def report(self, statement: str) -> None:
        """Tell the servers what was spent, for their status pages."""
        for shard in self._shards:
            shard.link.report(statement)

    def leave(self) -> None:
        """Tell the servers that all uploads were made, or that the budget is spent: the others need not wait."""
        for shard in self._shards:
            shard.link.done()

    def _pull(self, fraction: float) -> Download:
        if fraction == 1.0:
            whole = self.participant.spare
            for owned, link in ((shard.agreement, shard.link) for shard in self._shards):
                link.pull(fraction, size=owned.size, into=whole[owned.start : owned.stop])
            return Download(indices=None, values=whole)
        parts = [(s.agreement.start, s.link.pull(fraction, size=s.agreement.size)) for s in self._shards]
        values = np.concatenate([part.values for _, part in parts])
        if all(part.indices is None for _, part in parts):
            return Download(indices=None, values=values)
        places = [
            start + (np.arange(part.values.size) if part.indices is None else part.indices) for start, part in parts
        ]
        return Download(indices=np.concatenate(places), values=values)

    def _bodies(self, upload: Upload) -> list[list[Piece]]:
        """Return each server's part. One without entries still counts: the numbers stay the same everywhere."""
        bodies = []
        for owned in (shard.agreement for shard in self._shards):
            places = None
            low, high = owned.start, owned.stop
            if upload.indices is not None:
                low, high = map(int, np.searchsorted(upload.indices, [low, high]))
                places = upload.indices[low:high] - owned.start
            bodies.append(codec.upload_pieces(upload.sequence, places, upload.values[low:high], size=owned.size))
        return bodies

    def close(self) -> None:
        self.outbox.close()
