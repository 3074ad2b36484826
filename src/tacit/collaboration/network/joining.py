"""Taking part from the first to the last epoch, with a budget that nobody else has a say in."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from tacit._files import write_whole
from tacit.collaboration.network.codec import Agreement
from tacit.collaboration.network.hosting import layout_digest
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.membership import Membership, Shard, open_outbox
from tacit.collaboration.network.protection import UNPROTECTED, Account, budget, check_protection, spent_before
from tacit.collaboration.network.records import check_images
from tacit.collaboration.network.rounds import MaskedMembership
from tacit.collaboration.normalisation import Scale, moments, scale
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.privacy import Claim, claim
from tacit.collaboration.problem import builder
from tacit.collaboration.selection import Agreed
from tacit.collaboration.settings import Settings
from tacit.collaboration.workshop import Workshop, training_header
from tacit.ledger import BudgetExceeded, Ledger
from tacit.models import shokri
from tacit.randomness import SecureSource

log = logging.getLogger("tacit")


@dataclass(frozen=True, kw_only=True)
class Stand:
    """How far a participant is: uploads of those planned, those lost in abandoned rounds, and what it has cost.

    ``company`` is everybody who was in the rounds of masked uploads since the start of the process.
    """

    uploads: int
    planned: int
    lost: int
    company: tuple[str, ...]
    claim: Claim | None
    stopped: str | None
    model: nn.Module


def agreed_settings(agreement: Agreement, own: Settings) -> Settings:
    """One's own settings with what the collaboration has agreed on; privacy is one's own."""
    return replace(own, upload=agreement.upload, bound=agreement.bound)


def own_scale(folder: Path, images: Tensor, noise_multiplier: float, ledger: Ledger, source: SecureSource) -> Scale:
    """What one's own inputs are normalised by, from FOLDER/normalisation.json; released, charged and kept there once.

    A crash between the charge and the file wastes what was charged: another release is another charge.
    """
    path = folder / "normalisation.json"
    if not path.exists():
        released = moments(shokri.inputs(images), noise_multiplier=noise_multiplier, ledger=ledger, source=source)
        found = scale([released])
        write_whole(path, json.dumps(asdict(found)).encode(), mode=0o600)
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        kept = Scale(mean=tuple(map(float, facts["mean"])), std=tuple(map(float, facts["std"])))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); remove it to release it again, at a cost.") from error
    if not len(kept.mean) == len(kept.std) == images.shape[1] or not all(value > 0 for value in kept.std):
        raise ValueError(f"{path} is not about images of {images.shape[1]} channels; it belongs to other records.")
    return kept


def _check_network(agreement: Agreement, own: FlatParameters) -> None:
    """Refuse to train something else than the others."""
    if layout_digest(own) != agreement.layout or own.vector.size != agreement.parameters:
        raise ValueError(
            f"the server's {agreement.model} has other parameters than ours; use the same version of tacit."
        )


def _check_masks(agreement: Agreement, *, wanted: int, certified: bool) -> None:
    """Refuse to upload unmasked, or masked among fewer, what was to be masked among ``wanted``."""
    if agreement.pool < wanted:
        raise ValueError(
            f"uploads are to be masked among at least {wanted}, but the server "
            + (f"forms rounds of {agreement.pool}." if agreement.pool else "wants them as they are.")
            + " Nothing was sent."
        )
    if agreement.pool and not certified:
        raise ValueError("masked uploads need certificates: without them nobody knows with whom the masks are shared.")


def join(
    shards: Sequence[Shard],
    name: str,
    credentials: Credentials | None,
    records: tuple[Tensor, Tensor],
    folder: Path,
    settings: Settings,
    *,
    pool: int = 0,
    ledger: Path | None = None,
    lost_key: bool = False,
    progress: Callable[[Stand], None] | None = None,
) -> Stand:
    """Exchange until the planned epochs are done or the budget is spent; after a crash, call it again.

    The ledger is FOLDER/ledger.jsonl; the position, what is not acknowledged and what must not change are in
    FOLDER/participant.sqlite. With ``pool`` uploads are masked among so many, or none is made. Another ``ledger``, of
    another collaboration, is continued: the budget is then for all that is in it. ``lost_key`` says that somebody else
    may have uploaded under this name: their uploads are skipped, and this folder, its ledger and its budget go on.
    """
    agreement = shards[0].agreement
    model = builder(agreement.model, channels=len(agreement.mean))()
    _check_network(agreement, FlatParameters(model))
    check_images(records[0], agreement.image, len(agreement.mean))
    _check_masks(agreement, wanted=pool, certified=credentials is not None)
    agreed = Agreed(settings.upload) if agreement.pool else None
    with ExitStack() as stack:
        outbox = open_outbox(folder, name, shards)  # before all else: it makes the folder, for its owner alone
        stack.callback(outbox.close)
        check_protection(outbox, settings, records=len(records[0]), ledger=ledger)
        account = Account(ledger or folder / "ledger.jsonl", budget(settings), outbox)
        stack.callback(account.close)
        workshop = Workshop(
            settings,
            records=len(records[0]),
            parameters=agreement.parameters,
            places=agreed,
            spent=spent_before(outbox, ledger),
        )
        source = SecureSource()
        common = Scale(mean=agreement.mean, std=agreement.std)
        if workshop.normalisation is not None:
            book = account.open(training_header(name, source))
            common = own_scale(folder, records[0], workshop.normalisation, book, source)
            outbox.note_charged(len(book))
        inputs = common.apply(shokri.inputs(records[0]))
        participant = workshop.participant(name, model, inputs, records[1], source=source, ledger=account.open)
        membership: Membership
        if agreed is not None and credentials is not None:
            membership = MaskedMembership(
                participant,
                shards[0],
                outbox,
                credentials=credentials,
                agreed=agreed,
                download=settings.download,
                charged=lambda: account.steps,
                ready=lambda: account.check(workshop.step),
                lost_key=lost_key,
            )
        else:
            membership = Membership(
                participant,
                shards,
                outbox,
                download=settings.download,
                charged=lambda: account.steps,
                lost_key=lost_key,
            )

        def stand(stopped: str | None = None) -> Stand:
            found = claim(account.books, delta=settings.delta, query=workshop.query) if account.books else None
            return Stand(
                uploads=membership.done,
                planned=settings.epochs,
                lost=membership.lost,
                company=tuple(sorted(membership.company)),
                claim=found,
                stopped=stopped,
                model=model,
            )

        membership.deliver()
        if membership.done == 0:
            membership.start_from_server()
        state = stand()
        while membership.done < settings.epochs:
            try:
                membership.exchange()
            except BudgetExceeded as error:
                log.warning("stopped after %d of %d uploads: %s", membership.done, settings.epochs, error)
                state = stand(str(error))
                break
            state = stand()
            membership.report(UNPROTECTED if state.claim is None else str(state.claim))
            if progress is not None:
                progress(state)
        membership.start_from_server()  # to leave with what all have learned
        return state
