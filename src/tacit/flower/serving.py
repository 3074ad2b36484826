"""The parameter server as a ServerApp: it answers each reply as it arrives, and no node waits for another.

**Claim.** However often the ServerApp is killed, every upload that was committed is applied once, and a participant
that is asked again sends the bytes it had sent before.

**Why.** `Service` commits an upload under (participant, sequence) before it applies it (`network.store`). What the
ServerApp forgets when it dies is only which messages are under way. The next one, also in another run of Flower, asks
every node again and says which upload it expects: a node whose upload is in its outbox sends that one again (`answer`),
and the service knows it by its number and SHA-256.

Who sent a reply is whom the message that it answers was sent to; what a reply says of itself is not looked at. With
``flower-superlink --enable-supernode-auth`` a node is the holder of a registered key.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp
from torch import nn

from tacit.collaboration.exchange import Protocol
from tacit.collaboration.messages import Vector, check_fraction
from tacit.collaboration.network import codec
from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.hosting import layout_digest
from tacit.collaboration.network.service import Service
from tacit.collaboration.network.store import Store, rules_for
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.refusals import Refused
from tacit.flower import records

log = logging.getLogger("tacit")

_ERRORS = 10  # in a row, then a node is left out until the server is started again
_FIRST_REST, _LONGEST_REST = 1.0, 60.0  # seconds between an error and the next message


@dataclass(frozen=True, kw_only=True)
class Host:
    """A parameter server: its model, the folder of its state, and what everybody has agreed on.

    ``bound`` is γ, ``upload`` θ_u, ``download`` θ_d (the first download is always whole). The server ends when
    ``participants`` nodes have said that they are done, or when no node has answered for ``patience`` seconds.
    """

    network: Callable[[], nn.Module]
    folder: Path
    participants: int
    bound: float
    upload: float = 0.1
    download: float = 1.0
    patience: float = 3600.0
    pause: float = 0.2
    model: str = "custom"

    def __post_init__(self) -> None:
        if isinstance(self.participants, bool) or not isinstance(self.participants, int) or self.participants < 1:
            raise ValueError(f"participants is {self.participants!r}; it must be a whole number, at least 1.")
        check_fraction("upload", self.upload)
        check_fraction("download", self.download)
        for name in ("patience", "pause"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be above 0 seconds.")


def server_app(prepare: Callable[[Context], Host]) -> ServerApp:
    """Return a ServerApp for what ``prepare`` makes of Flower's context; the state stays in the host's folder."""

    def main(grid: Grid, context: Context) -> None:
        serve(grid, prepare(context))

    app = ServerApp()
    app.main()(main)
    return app


def serve(grid: Grid, host: Host) -> Vector:
    """Exchange parameters until all are done; returns them. Called again after a crash, it goes on where it was."""
    service = Service(_state(host))
    try:
        exchange = _Exchange(grid, service, host)
        exchange.run()
        return service.parameters()[1]
    finally:
        service.close()


def _state(host: Host) -> Store:
    flat = FlatParameters(host.network())
    if not (host.folder / "server.sqlite").exists():
        agreement = Agreement(
            collaboration=secrets.token_hex(16),
            model=host.model,
            layout=layout_digest(flat),
            parameters=flat.vector.size,
            start=0,
            stop=flat.vector.size,
            bound=host.bound,
            upload=host.upload,
            protocol=Protocol.ASYNCHRONOUS,
            pool=0,
            mean=(0.0,),
            std=(1.0,),
        )
        return Store.create(host.folder, agreement, flat.vector, rules_for(agreement, participants=host.participants))
    store = Store(host.folder)
    held = store.agreement
    wanted = {"model": host.model, "layout": layout_digest(flat), "bound": host.bound, "upload": host.upload}
    for name, value in wanted.items():
        if getattr(held, name) != value:
            store.close()
            raise ValueError(
                f"{name} is {value}, but the collaboration in {host.folder} began with {getattr(held, name)}; keep it, "
                "or begin another in another folder."
            )
    return store


@dataclass
class _Exchange:
    """The messages under way: all that a server that dies forgets."""

    grid: Grid
    service: Service
    host: Host
    sent: dict[str, int] = field(default_factory=dict)  # message to node
    done: dict[int, str] = field(default_factory=dict)  # node to the reason
    errors: Counter[int] = field(default_factory=Counter)
    rests: dict[int, float] = field(default_factory=dict)  # node to when it is asked again
    known: set[int] = field(default_factory=set)

    def run(self) -> None:
        heard = time.monotonic()
        while len(self.done) < self.host.participants or self.sent:
            self.invite()
            answered = False
            for sent, reply in records.pull(self.grid, list(self.sent)):
                node, answered = self.sent.pop(sent), True
                if self.take(node, reply):
                    heard = time.monotonic()
                    self.ask(node)
            if time.monotonic() - heard > self.host.patience:
                log.warning(
                    "no node has answered for %g s; ending with %d nodes done", self.host.patience, len(self.done)
                )
                return
            if not answered:
                time.sleep(self.host.pause)

    def invite(self) -> None:
        """Ask everybody who is here and has no message under way."""
        busy, now = set(self.sent.values()), time.monotonic()
        for node in self.grid.get_node_ids():
            if node not in busy and self.rests.get(node, now) <= now:
                self.ask(node)

    def ask(self, node: int) -> None:
        """Send the latest parameters; the answer to them is an upload."""
        if node in self.done:
            return
        name = str(node)
        if node not in self.known:
            self.service.admit(name)
            self.known.add(node)
        try:
            due, _ = codec.split_token(self.service.agree(name))
            fraction = self.host.download if due else 1.0
            message = self.service.pull(name, codec.pack_fraction(fraction))
        except Refused as refusal:
            self._leave_out(node, str(refusal))
            return
        agreement = self.service.agreement
        content = records.invitation(agreement, due, codec.unpack_download(message, size=agreement.size))
        sent = records.send(self.grid, Message(content, node, MessageType.TRAIN))
        if sent is not None:
            self.sent[sent] = node

    def take(self, node: int, reply: Message | None) -> bool:
        """Commit and apply what a node sent; whether it sent anything.

        A node that sends what is refused would send it again, so it is left out.
        """
        if reply is None or reply.has_error():
            log.warning("node %d: %.500r", node, reply.error.reason if reply is not None else "its reply is no message")
            self.rests[node] = time.monotonic() + min(_FIRST_REST * 2 ** self.errors[node], _LONGEST_REST)
            self.errors[node] += 1
            if self.errors[node] >= _ERRORS:
                self._leave_out(node, f"{_ERRORS} errors in a row")
            return False
        self.errors[node] = 0
        name = str(node)
        try:
            self.service.report(name, records.read_statement(reply.content))
            reason = records.read_finished(reply.content)
            if reason is None:
                body = records.read_upload(reply.content, self.service.agreement)
                self.service.push(name, codec.pack_token(0) + body)
            else:
                log.info("node %d is done: %.200r", node, reason)
                self.done[node] = reason
        except Refused as refusal:
            self._leave_out(node, str(refusal))
        return True

    def _leave_out(self, node: int, reason: str) -> None:
        log.warning("node %d is left out: %s", node, reason)
        self.done[node] = reason
