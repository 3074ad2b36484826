"""Private averaging over Flower: rounds of messages to those who were drawn, and what a participant answers.

What is promised, and by whom it must be kept, is in `tacit.collaboration.averaging`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from tacit.collaboration.averaging import Averager, Averaging, Round
from tacit.collaboration.messages import Vector
from tacit.collaboration.network.hosting import layout_digest
from tacit.collaboration.parameters import FlatParameters
from tacit.flower import records
from tacit.flower.joining import discreet
from tacit.ledger import BudgetExceeded
from tacit.mechanisms import SumQuery

log = logging.getLogger("tacit")

_PARAMETERS, _ROUND, _CHANGE = "tacit.parameters", "tacit.round", "tacit.change"


def averaging_app(prepare: Callable[[Context], Averaging]) -> ServerApp:
    """Return a ServerApp that averages as ``prepare`` says; the model stays in the folder."""

    def main(grid: Grid, context: Context) -> None:
        average(grid, prepare(context))

    app = ServerApp()
    app.main()(main)
    return app


def average(grid: Grid, averaging: Averaging) -> Vector:
    """All rounds, or as many as the budget allows; returns the parameters. After a crash, call it again."""
    layout = layout_digest(FlatParameters(averaging.network()))
    seats: dict[int, int] = {}  # node to slot
    with Averager(averaging) as averager:
        _wait(grid, averaging)
        while averager.rounds < averaging.rounds:
            here = [(node, seats.setdefault(node, len(seats))) for node in grid.get_node_ids()]
            try:
                current = averager.begin(len(seats))
            except BudgetExceeded as error:
                log.warning("stopped after %d of %d rounds: %s", averager.rounds, averaging.rounds, error)
                break
            facts = ConfigRecord({"clip_norm": averaging.clip_norm, "layout": layout})
            content = RecordDict({**records.dense(_PARAMETERS, averager.parameters), _ROUND: facts})
            _collect(grid, content, current, here, averaging)
            averager.end(current)
        return averager.parameters


def _wait(grid: Grid, averaging: Averaging) -> None:
    until = time.monotonic() + averaging.patience
    while len(list(grid.get_node_ids())) < averaging.least and time.monotonic() < until:
        time.sleep(averaging.pause)


def _collect(
    grid: Grid, content: RecordDict, current: Round, here: Iterable[tuple[int, int]], averaging: Averaging
) -> None:
    """Ask those who were drawn and are here. Which ones, and what became of it, is a secret: no log says it."""
    waiting: dict[str, int] = {}  # message to slot
    for node, slot in here:
        if slot in current.slots:
            sent = records.send(grid, Message(content, node, MessageType.TRAIN, ttl=averaging.patience))
            if sent is not None:
                waiting[sent] = slot
    until = time.monotonic() + averaging.patience
    while waiting and time.monotonic() < until:
        before = len(waiting)
        for sent, reply in records.pull(grid, list(waiting)):
            _add(current, waiting.pop(sent), reply)
        if len(waiting) == before:
            time.sleep(averaging.pause)


def _add(current: Round, slot: int, reply: Message | None) -> None:
    """Add a reply; an error, or anything but a change, counts as zero."""
    if reply is None or reply.has_error():
        return
    with contextlib.suppress(ValueError):
        current.add(slot, records.read_dense(reply.content, _CHANGE, size=current.size))


def update_app(network: Callable[[], nn.Module], train: Callable[[nn.Module, Context], None]) -> ClientApp:
    """Return a ClientApp that answers with the change ``train`` makes to the model, clipped, and with nothing else.

    No loss, accuracy or number of records goes with it: nothing covers them.
    """

    def update(message: Message, context: Context) -> Message:
        model = network()
        flat = FlatParameters(model)
        before, norm = _read(message.content, flat)
        flat.vector[:] = before
        train(model, context)
        change = torch.from_numpy(FlatParameters(model).vector - before)
        clipped = SumQuery(group="update", clip_norm=norm, noise_std=norm).clip(change[None])[0]
        return Message(records.dense(_CHANGE, clipped.numpy()), reply_to=message)

    app = ClientApp()
    app.train()(discreet(update))
    return app


def _read(content: RecordDict, flat: FlatParameters) -> tuple[Vector, float]:
    facts = content.get(_ROUND)
    norm = facts.get("clip_norm") if isinstance(facts, ConfigRecord) else None
    if not isinstance(facts, ConfigRecord) or not isinstance(norm, float) or facts.get("layout") != layout_digest(flat):
        raise ValueError("the message is not about our network; all must have the same.")
    return records.read_dense(content, _PARAMETERS, size=flat.vector.size), norm
