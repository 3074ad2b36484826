"""Distributed selective SGD with all participants in one process, and the two baselines it is measured by."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tacit.collaboration.exchange import Lease, Protocol, Turn, turns
from tacit.collaboration.messages import Download, Positions, Vector
from tacit.collaboration.normalisation import moments, scale
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.participant import Participant
from tacit.collaboration.privacy import Claim, LocalDpSgd, claim
from tacit.collaboration.problem import Problem, share_out
from tacit.collaboration.server import ParameterServer, Rules
from tacit.collaboration.settings import Settings
from tacit.collaboration.workshop import Workshop, local_sgd, seed_from, training_header
from tacit.ledger import Header, Ledger
from tacit.randomness import SecureSource, SeededSource, Source

log = logging.getLogger("tacit")

_PUBLIC = (
    "inputs are normalised by the mean and standard deviation of the training set, which are taken to be public: no ε "
    "covers them."
)
_PRIVATE = (
    "inputs are normalised by the mean and standard deviation that the participants have released privately; ε covers "
    "them."
)
_STANDALONE = 10  # participants whose lonely training is averaged; the others fare alike


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a simulation is: ``done`` of ``total`` exchanges, and the accuracy at the end of the last epoch."""

    done: int
    total: int
    epoch: int
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a simulation. Accuracies are of the test set after the last epoch; ``history`` has all epochs'.

    ``centralised_accuracy`` is of SGD on the pooled records of all participants, ``standalone_accuracy`` the mean of
    participants who train alone, both for as many epochs; None if they were not wanted. ``protocol_seconds`` is the
    CPU time of everything but local training, all exchanges together.
    """

    test_accuracy: float
    standalone_accuracy: float | None
    centralised_accuracy: float | None
    history: list[float]
    bytes_up: int
    bytes_down: int
    exchanges: int
    protocol_seconds: float
    seconds: float
    claim: Claim | None
    notes: tuple[str, ...]


def simulate(
    problem: Problem,
    settings: Settings,
    *,
    baselines: bool = True,
    progress: Callable[[Progress], None] | None = None,
    watch: Callable[[Vector], None] | None = None,
) -> Result:
    """Run a collaboration; ``watch`` sees every change before it is selected and must not be used on private data."""
    started = time.perf_counter()
    world = _World(problem, settings, watch)
    history: list[float] = []
    total, done = settings.participants * settings.epochs, 0
    for epoch in range(settings.epochs):
        for _ in world.epoch():
            done += 1
            if progress is not None:
                progress(Progress(done=done, total=total, epoch=epoch, accuracy=history[-1] if history else None))
        history.append(world.accuracy())
        log.info("epoch %d: accuracy %.4f", epoch + 1, history[-1])
    if progress is not None:
        progress(Progress(done=done, total=total, epoch=settings.epochs, accuracy=history[-1]))
    return Result(
        test_accuracy=history[-1],
        standalone_accuracy=world.standalone() if baselines else None,
        centralised_accuracy=world.centralised()[-1] if baselines else None,
        history=history,
        bytes_up=world.bytes_up,
        bytes_down=world.bytes_down,
        exchanges=done,
        protocol_seconds=world.protocol_seconds,
        seconds=time.perf_counter() - started,
        claim=world.claim(),
        notes=world.notes(),
    )


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Baselines of a collaboration: accuracies of `Result`, and the centralised one after each epoch."""

    standalone: float
    centralised: list[float]


def baselines(problem: Problem, settings: Settings) -> Baselines:
    """Training alone and on pooled records, with the records, network and learning rate of the collaboration."""
    world = _World(problem, settings, None)
    return Baselines(standalone=world.standalone(), centralised=world.centralised())


class _World:
    """The server, the participants and what they hold."""

    def __init__(self, problem: Problem, settings: Settings, watch: Callable[[Vector], None] | None) -> None:
        self._problem, self._settings, self._watch = problem, settings, watch
        _check_normalisation(problem, settings)
        self._source = _source(settings.seed, "world")
        self._initial = seed_from(self._source)
        records = max(round(settings.share * len(problem.inputs)), 1)
        self._hands = share_out(len(problem.inputs), settings.participants, records, self._source)
        self._judge = problem.network(self._initial)
        self._judged = FlatParameters(self._judge)
        self._ledgers: dict[int, Ledger] = {}
        self._workshop = Workshop(settings, records=records, parameters=self._judged.vector.size)
        if self._workshop.normalisation is not None:
            self._problem = self._normalised(self._workshop.normalisation)
        self._people = [self._participant(number) for number in range(settings.participants)]
        rules = Rules(bound=settings.limit, upload=settings.upload, decay_every=settings.participants)
        self.server = ParameterServer(self._judged.vector, rules, [person.name for person in self._people])
        self._start, self._seen = self.server.pull(settings.download), dict[int, Download]()
        self.bytes_up = self.bytes_down = 0
        self.protocol_seconds = 0.0

    def _normalised(self, noise_multiplier: float) -> Problem:
        """By what all participants release about their records, averaged."""
        released = []
        for number, hand in enumerate(self._hands):
            source = _source(self._settings.seed, f"participant {number}, statistics")
            released.append(
                moments(
                    self._problem.inputs[torch.from_numpy(hand)],
                    noise_multiplier=noise_multiplier,
                    ledger=self._ledger(number, training_header(f"participant {number}", source)),
                    source=source,
                )
            )
        common, raw = scale(released), self._problem
        return replace(raw, inputs=common.apply(raw.inputs), test_inputs=common.apply(raw.test_inputs), raw=False)

    def _participant(self, number: int) -> Participant:
        name, settings = f"participant {number}", self._settings
        source = _source(settings.seed, name)
        rows = torch.from_numpy(self._hands[number])
        return self._workshop.participant(
            name,
            self._problem.network(self._initial),
            TensorDataset(self._problem.inputs[rows], self._problem.labels[rows]),
            source=source,
            ledger=lambda header: self._ledger(number, header),
            watch=self._watch,
        )

    def _ledger(self, number: int, header: Header) -> Ledger:
        if number not in self._ledgers:
            self._ledgers[number] = Ledger(header)
        return self._ledgers[number]

    def epoch(self) -> Iterator[None]:
        """One exchange of everybody."""
        settings, server = self._settings, self.server
        lease = Lease(1.0)
        for turn in turns(settings.protocol, settings.participants, self._source):
            person = self._people[turn.participant]
            clock = time.thread_time()
            token = lease.acquire(person.name, now=0.0) if settings.protocol is Protocol.RANDOM_ORDER else None
            download = self._download(turn)
            person.begin(download)
            self.protocol_seconds += time.thread_time() - clock
            person.train()
            clock = time.thread_time()
            upload = person.finish()
            server.push(upload.participant, upload.sequence, upload.indices, upload.values)
            if token is not None:
                lease.release(token)
            self.protocol_seconds += time.thread_time() - clock
            self.bytes_down += download.size
            self.bytes_up += upload.size
            yield

    def _download(self, turn: Turn) -> Download:
        """Return what is on the server, or was when this participant last came, an epoch ago."""
        latest = self.server.pull(self._settings.download)
        if self._settings.protocol is not Protocol.ASYNCHRONOUS:
            return latest
        outdated, self._seen[turn.participant] = self._seen.get(turn.participant, self._start), latest
        return outdated if turn.stale else latest

    def accuracy(self) -> float:
        """Return the accuracy of the global parameters."""
        self._judged.vector[:] = self.server.parameters
        return accuracy(self._judge, self._problem)

    def standalone(self) -> float:
        """Return the mean accuracy of participants who train alone."""
        scores = []
        for number, hand in enumerate(self._hands[:_STANDALONE]):
            *_, model = self._alone(hand, f"alone {number}")
            scores.append(accuracy(model, self._problem))
        return sum(scores) / len(scores)

    def centralised(self) -> list[float]:
        """Return the accuracy of SGD on all participants' records, after each epoch."""
        hand = np.unique(np.concatenate(self._hands))
        return [accuracy(model, self._problem) for model in self._alone(hand, "pooled")]

    def _alone(self, hand: Positions, name: str) -> Iterator[nn.Module]:
        model, rows = self._problem.network(self._initial), torch.from_numpy(hand)
        source = _source(self._settings.seed, name)
        held = TensorDataset(self._problem.inputs[rows], self._problem.labels[rows])
        train = local_sgd(model, held, self._settings, source)
        for _ in range(self._settings.epochs):
            train()
            yield model

    def claim(self) -> Claim | None:
        """Return the claim of the participant who spent most."""
        if not self._ledgers:
            return None
        return claim(list(self._ledgers.values()), delta=self._settings.delta, query=self._workshop.query)

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the numbers should know."""
        held = sum(hand.size for hand in self._hands)
        copies = -(-held // len(self._problem.inputs))
        notes = [
            "centralised: SGD on the pooled records of all participants, for as many epochs; standalone: the mean of "
            f"{min(len(self._hands), _STANDALONE)} participants who train alone.",
            _PUBLIC if self._workshop.normalisation is None else _PRIVATE,
        ]
        if self._ledgers:
            notes.append(
                "ε is of one participant's ledger, everything it uploads in the whole training; how many records each "
                "participant has is taken to be public."
            )
            if copies > 1:
                notes.append(
                    f"a record can be held by {copies} participants: its own ε is then up to {copies} times that."
                )
            if self._settings.seed is not None:
                notes.append("the noise comes from a seed, for debugging: it gives no protection.")
        return tuple(notes)


def _check_normalisation(problem: Problem, settings: Settings) -> None:
    """Raw inputs and settings that ask for private normalisation belong together."""
    asked = isinstance(settings.privacy, LocalDpSgd) and settings.privacy.normalisation is not None
    if asked != problem.raw:
        raise ValueError(
            f"the problem's inputs are {'raw' if problem.raw else 'normalised already'}; private normalisation needs "
            "raw_problem and LocalDpSgd(normalisation=...), and neither goes without the other."
        )


def accuracy(model: nn.Module, problem: Problem) -> float:
    """Return the fraction of the test set that ``model`` classifies as labelled."""
    model.eval()
    with torch.no_grad():
        pairs = zip(torch.split(problem.test_inputs, 1000), torch.split(problem.test_labels, 1000), strict=True)
        right = sum(int((model(inputs).argmax(dim=1) == labels).sum()) for inputs, labels in pairs)
    return right / len(problem.test_labels)


def _source(seed: int | None, name: str) -> Source:
    """Secret randomness; with a seed, a stream of its own for each name."""
    if seed is None:
        return SecureSource()
    source = SeededSource(seed)
    source.branch(name)
    return source
