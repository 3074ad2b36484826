"""A participant as a ClientApp: every message is answered with one upload, out of an outbox on the participant's disk.

**Claim.** Whenever a SuperNode or the process of a ClientApp is killed, or the server asks again, what may have been
seen of an upload is sent again as it is, noise included, and all of it is in the participant's ledger.

**Why.** As in `network.outbox`: the ledger is written before noise is drawn, the outbox before the answer is given. An
upload leaves the outbox when the server, in a later message, expects a later one.

Flower runs a ClientApp anew for each message and keeps its `Context` in memory, for one run, so the context cannot be
the truth about a budget. It is a witness: it remembers how many uploads were made, and a folder that knows of fewer is
an old copy, whose ledger would claim less than was released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.collaboration.messages import Download
from tacit.collaboration.network import codec
from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.hosting import layout_digest
from tacit.collaboration.network.joining import agreed_settings
from tacit.collaboration.network.outbox import Outbox, Position
from tacit.collaboration.network.protection import UNPROTECTED, Account, budget, check_protection
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.privacy import claim
from tacit.collaboration.settings import Settings
from tacit.collaboration.workshop import Workshop
from tacit.flower import records
from tacit.ledger import BudgetExceeded, Ledger
from tacit.randomness import SecureSource, SeededSource, Source

log = logging.getLogger("tacit")

STATE = "tacit"
LEDGER = "ledger.jsonl"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A participant: the common network, its own records, and the settings that it decides alone.

    Of ``settings``, privacy, δ, epochs (uploads, at most), learning rate, batch size, selection and τ are the
    participant's; γ, θ_u and θ_d are the server's. ``folder`` holds its ledger and outbox, and must outlive the
    SuperNode. With a seed in the settings everything is repeatable and noise gives no protection; the ledger says so.
    Settings without privacy are an oversight unless ``without_noise`` says that they are meant.
    """

    network: Callable[[], nn.Module]
    inputs: Tensor
    labels: Tensor
    settings: Settings
    folder: Path
    without_noise: bool = False

    def __post_init__(self) -> None:
        if (self.settings.privacy is None) != self.without_noise:
            raise ValueError(
                f"privacy is {self.settings.privacy} and without_noise is {self.without_noise}; choose how records are "
                "protected, or say that they are not."
            )


def participant_app(prepare: Callable[[Context], Member]) -> ClientApp:
    """Return a ClientApp that takes part as what ``prepare`` makes of Flower's context."""

    app = ClientApp()
    app.train()(discreet(lambda message, context: answer(message, context, prepare(context))))
    return app


def discreet(handle: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
    """``handle``, but errors stay here: Flower sends their text to the server, and it may quote a record."""

    def handled(message: Message, context: Context) -> Message:
        try:
            return handle(message, context)
        except Exception:
            log.exception("a message of the server could not be answered")
        raise RuntimeError("the participant could not answer; its own log says why.")

    return handled


def answer(message: Message, context: Context, member: Member) -> Message:
    """Return the answer to a server: the upload it has not got yet, the next one, or that there will be no more."""
    agreement, due, download = records.read_invitation(message.content)
    with ExitStack() as stack:
        outbox = Outbox(member.folder, participant=str(context.node_id), collaboration=agreement.collaboration)
        stack.callback(outbox.close)
        desk = _Desk(member, agreement, outbox, stack)
        _check_witness(context, agreement, desk.sequence)
        desk.settle(due)
        reason = None
        if not outbox.unsent():
            reason = desk.exchange(download)
        context.state[STATE] = ConfigRecord({"collaboration": agreement.collaboration, "uploads": desk.sequence})
        statement = desk.statement()
        if reason is not None:
            return Message(records.finished(reason, statement=statement), reply_to=message)
        body = outbox.body(outbox.unsent()[0])
        return Message(records.upload(body, size=agreement.size, statement=statement), reply_to=message)


class _Desk:
    """A participant put together for one message, as it stood after the last."""

    def __init__(self, member: Member, agreement: Agreement, outbox: Outbox, stack: ExitStack) -> None:
        self._member, self._outbox = member, outbox
        self._settings = agreed_settings(agreement, member.settings)
        self._model = member.network()
        flat = FlatParameters(self._model)
        if layout_digest(flat) != agreement.layout or flat.vector.size != agreement.parameters:
            raise ValueError(f"the server's network ({agreement.model}) has other parameters than ours; use the same.")
        self._size = agreement.size
        check_protection(outbox, self._settings, records=len(member.inputs), ledger=None)
        self._account = Account(member.folder / LEDGER, budget(self._settings), outbox)
        stack.callback(self._account.close)
        position = outbox.position()
        self.sequence = 0 if position is None else position.sequence

    def settle(self, due: int) -> None:
        """Take out of the outbox what the server has; both must remember the same uploads but for the last."""
        waiting = self._outbox.unsent()
        least = waiting[0].sequence if waiting else self.sequence
        if due < least:
            raise ValueError(f"the server expects upload {due} but had all before {least}; it has lost its state.")
        if due > self.sequence:
            raise ValueError(
                f"the server has {due} uploads of ours, {self._member.folder} knows of {self.sequence}; it is an old "
                "copy, or another program is the same node; put the newest copy back."
            )
        for letter in waiting:
            if letter.sequence < due:
                self._outbox.acknowledged(letter)

    def exchange(self, download: Download) -> str | None:
        """Train for an epoch and put the upload into the outbox; or why there will be no more."""
        settings, member = self._settings, self._member
        if self.sequence >= settings.epochs:
            return f"all {settings.epochs} uploads were made"
        workshop = _workshop(replace(settings, seed=None), len(member.inputs), self._size)
        participant = workshop.participant(
            "participant",
            self._model,
            TensorDataset(member.inputs, member.labels),
            source=self._source(),
            ledger=self._account.open,
        )
        position = self._outbox.position()
        if position is not None:
            participant.resume(sequence=position.sequence, steps=position.steps, parameters=position.parameters)
        participant.begin(download)
        try:
            participant.train()
            upload = participant.finish()
        except BudgetExceeded as error:
            return str(error)
        body = codec.upload_pieces(upload.sequence, upload.indices, upload.values, size=self._size)
        now = Position(
            sequence=participant.sequence,
            steps=participant.steps,
            parameters=participant.parameters.vector,
            charged=self._account.steps,
        )
        self._outbox.put([body], now)
        self.sequence = participant.sequence
        return None

    def statement(self) -> str:
        """Return the cost so far in words."""
        path = self._member.folder / LEDGER
        if not path.exists():
            return UNPROTECTED
        return str(claim([Ledger.load(path)], delta=self._settings.delta))[: codec.LONGEST_STATEMENT // 4]

    def _source(self) -> Source:
        """Return the random source of one upload. Each seeded upload has a stream of its own."""
        if self._settings.seed is None:
            return SecureSource()
        source = SeededSource(self._settings.seed)
        source.branch(f"upload {self.sequence}")
        return source


@lru_cache(maxsize=8)
def _workshop(settings: Settings, records: int, parameters: int) -> Workshop:
    """Solving for the noise takes a while; in a simulation many nodes ask for the same."""
    return Workshop(settings, records=records, parameters=parameters)


def _check_witness(context: Context, agreement: Agreement, sequence: int) -> None:
    seen = context.state.get(STATE)
    if not isinstance(seen, ConfigRecord) or seen.get("collaboration") != agreement.collaboration:
        return
    uploads = seen.get("uploads")
    if isinstance(uploads, int) and uploads > sequence:
        raise ValueError(
            f"{uploads} uploads were made from this node, the folder knows of {sequence}: it is an old copy, and its "
            "ledger lacks what was released since."
        )
