"""A grid in memory that is as unreliable as it is told to be, and a small problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import Tensor, nn

NODES = (11, 22, 33)
RECORDS = 20


class Killed(BaseException):
    """The process of the ServerApp was killed here."""


def network() -> nn.Module:
    """The same parameters each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def records(number: int) -> tuple[Tensor, Tensor]:
    """Of one participant."""
    generator = torch.Generator().manual_seed(50 + number)
    return torch.randn(RECORDS, 6, generator=generator), torch.randint(3, (RECORDS,), generator=generator)


class MemoryGrid(Grid):
    """Nodes in this process. ``order`` says whose reply is pulled next (then anybody's), ``kill_at`` at which call the
    server dies; ``tamper`` may replace a reply, or return None for one that is lost on its way.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[int] = NODES,
        *,
        order: Iterable[int] = (),
        kill_at: int | None = None,
        tamper: Callable[[int, Message], Message | None] = lambda node, reply: reply,
    ) -> None:
        self.app, self.nodes, self.order, self.kill_at, self.tamper = app, list(nodes), list(order), kill_at, tamper
        self.contexts = {node: self.context(node) for node in nodes}
        self.waiting: dict[str, Message] = {}
        self.calls = self.numbered = 0

    @staticmethod
    def context(node: int) -> Context:
        return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._call()
        numbers = []
        for message in messages:
            self.numbered += 1
            message.metadata.__dict__["_message_id"] = str(self.numbered)
            self.waiting[str(self.numbered)] = message
            numbers.append(str(self.numbered))
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._call()
        due = [self.waiting[number] for number in message_ids if number in self.waiting]
        if self.order:
            due = [message for message in due if message.metadata.dst_node_id == self.order[0]]
        if not due:
            return []
        message = due[0]
        if self.order:
            self.order.pop(0)
        del self.waiting[message.metadata.message_id]
        node = message.metadata.dst_node_id
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:
            reply = Message(Error(code=1, reason=str(error)), reply_to=message)
        changed = self.tamper(node, reply)
        return [Message(Error(code=2, reason="lost"), reply_to=message) if changed is None else changed]

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed
