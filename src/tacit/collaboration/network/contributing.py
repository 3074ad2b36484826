"""A participant of private averaging: download, local epochs, a clipped change, until the server says it is over."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tacit.accounting import Filter
from tacit.collaboration.dataset import Loss, as_dataset, check_fits, count
from tacit.collaboration.network import codec
from tacit.collaboration.network.averaging import WORK
from tacit.collaboration.network.averaging_terms import AveragingTerms
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.link import Ended, Link
from tacit.collaboration.network.shared_contributing import SharedRounds
from tacit.collaboration.participant import Participant
from tacit.collaboration.privacy import Claim, LocalDpSgd, claim
from tacit.collaboration.refusals import Reason, Refused
from tacit.collaboration.settings import Settings
from tacit.collaboration.workshop import Workshop
from tacit.ledger import Budget, BudgetExceeded, Header, Ledger
from tacit.mechanisms import SumQuery
from tacit.randomness import SecureSource

log = logging.getLogger("tacit")

Send = Callable[[int, torch.Tensor], None]
"""Send the change of the round of this number."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """A participant's result: the model, and its two guarantees.

    ``central`` is the cost of all rounds to a whole participant (``central_epsilon`` its ε). With the server's noise it
    is the server's word, which a participant cannot check, and None if the participant left before the end. With the
    participants' noise it is of this participant's own ledger, and ``assumed`` says under which condition. ``local`` is
    what its other ledger says about its examples; None without local DP-SGD.
    """

    model: nn.Module
    rounds: int
    stopped: str
    central: str
    central_epsilon: float | None
    local: Claim | None
    assumed: str = ""

    def report(self) -> str:
        """Return both guarantees, one a line."""
        own = "none: training here has no noise" if self.local is None else str(self.local.whole)
        together = f"all participants' noise together (our own ledger; {self.assumed})"
        whose = together if self.assumed else "the server's noise (as it says)"
        return f"participant, by {whose}: {self.central}\nexample, by our own noise: {own}"


def contribute(
    link: Link,
    name: str,
    *,
    network: Callable[[], nn.Module],
    dataset: Any,
    folder: Path,
    loss: Loss = F.cross_entropy,
    privacy: LocalDpSgd | None = None,
    most_epsilon: float | None = None,
    credentials: Credentials | None = None,
    masked: bool = False,
    ended: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> Contribution:
    """Train in every round that one is drawn in, one epoch each; return when the server says that it is over.

    With ``privacy`` local training is DP-SGD, charged to FOLDER/ledger.jsonl within its budget, for as many epochs as
    there are rounds. ``most_epsilon``, at the δ of the settings, refuses a server whose terms promise a
    participant less, ``masked`` one that would see a single participant's change.
    """
    model, records = network(), as_dataset(dataset)
    text = link.call("Terms", b"")
    terms = AveragingTerms.unpack(text)
    own = Settings(participants=1, epochs=terms.rounds, privacy=privacy, upload=1.0, **settings)
    _check_terms(terms, model, most=most_epsilon, delta=own.delta)
    if masked and not terms.shared:
        raise ValueError("changes are to be masked, but the server adds the noise and sees them; nothing was sent.")
    if terms.shared and credentials is None:
        raise ValueError(
            "masked changes need certificates, which show with whom the masks are shared; give the folder of --keys."
        )
    check_fits(model, records, loss, private=privacy is not None)
    query = SumQuery(group="update", clip_norm=terms.clip_norm, noise_std=terms.clip_norm)
    books: list[Ledger] = []
    with ExitStack() as stack:

        def ledger(header: Header) -> Ledger:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            book = Ledger.open(folder / "ledger.jsonl", header)
            stack.callback(book.close)
            if privacy is not None:
                book.guard(Filter(Budget(privacy.epsilon, privacy.delta)))
            books.append(book)
            return book

        workshop = Workshop(own, records=count(records), parameters=terms.parameters)
        person = workshop.participant(name, model, records, source=SecureSource(), ledger=ledger, loss=loss)
        if books and len(books[0]):
            setattr(person.training, "steps", len(books[0]))  # noqa: B010
        assumed = ""
        if terms.shared and credentials is not None:
            rounds = SharedRounds(link, credentials, text, folder)
            stack.callback(rounds.close)
            facts, stopped = _rounds(link, person, lambda _, change: rounds.send(change), ended)
            central, assumed = rounds.guarantee(), rounds.assumed
            facts |= {"guarantee": str(central), "epsilon": 0.0 if central is None else central.epsilon}
        else:

            def send(number: int, change: torch.Tensor) -> None:
                values = query.clip(change[None])[0].to(torch.float32).numpy()
                body = codec.pack_upload(0, None, values, size=values.size)
                link.call("Change", codec.pack_token(number) + body)

            facts, stopped = _rounds(link, person, send, ended)
        found = claim(books, delta=own.delta) if books and len(books[0]) else None
    return Contribution(
        model=model,
        rounds=int(facts.get("rounds", 0)),
        stopped=stopped,
        central=str(facts.get("guarantee", "not told: we left before the end")),
        central_epsilon=float(facts["epsilon"]) if "epsilon" in facts else None,
        local=found,
        assumed=assumed,
    )


def _rounds(link: Link, person: Participant, send: Send, ended: Callable[[], bool]) -> tuple[dict[str, Any], str]:
    """Train and send until it is over; return what the server says then, and why it is."""
    vector = person.parameters.vector
    try:
        while not ended():
            answer = link.call("Work", b"")
            number, rest = codec.split_token(answer[1:])
            if answer[:1] != WORK:
                facts = json.loads(bytes(rest[:number]))
                vector[:] = codec.unpack_download(bytes(rest[number:]), size=vector.size).values
                return facts, str(facts["stopped"])
            before = codec.unpack_download(bytes(rest), size=vector.size).values
            vector[:] = before
            person.train()
            try:
                send(number, torch.from_numpy(vector - before))
            except Refused as refusal:
                if refusal.reason is not Reason.ROUND:
                    raise
                log.warning("a round was abandoned, or went on without us: %s", refusal)
    except (BudgetExceeded, Ended) as error:
        return {}, str(error)
    return {}, "asked to end"


def _check_terms(terms: AveragingTerms, model: nn.Module, *, most: float | None, delta: float) -> None:
    """Refuse a network or a protection that is not ours."""
    difference = terms.difference(model)
    if difference is not None:
        raise ValueError(f"the network here is not the server's: {difference}. Nothing was sent.")
    if most is not None and not (terms.epsilon <= most and terms.delta <= delta):
        raise ValueError(
            f"the server promises a participant ε = {terms.epsilon:g} at δ = {terms.delta:g}, and yours is to be at "
            f"most {most:g} at {delta:g}; nothing was sent."
        )
