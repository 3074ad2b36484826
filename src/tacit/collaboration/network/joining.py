"""Take part from the first to the last epoch, within a budget that only the participant decides."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tacit._files import write_whole
from tacit.collaboration.dataset import Loss, as_dataset, check_fits, count, record_shape
from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.hosting import Network, check_network
from tacit.collaboration.network.keys import Credentials
from tacit.collaboration.network.link import Ended
from tacit.collaboration.network.membership import Membership, Shard, open_outbox
from tacit.collaboration.network.protection import (
    UNPROTECTED,
    Account,
    budget,
    check_promised,
    check_protection,
    spent_before,
)
from tacit.collaboration.network.records import check_images
from tacit.collaboration.network.rounds import MaskedMembership
from tacit.collaboration.normalisation import Scale, moments, scale
from tacit.collaboration.privacy import Claim, LocalDpSgd, claim
from tacit.collaboration.problem import builder
from tacit.collaboration.refusals import Reason, Refused
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
    """Return the scale of one's own inputs from FOLDER/normalisation.json; released, charged and kept there once.

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


def _own_model(agreement: Agreement, network: Network | None) -> nn.Module:
    """Return the network of the collaboration, built here. Nothing that a server names is ever imported."""
    if network is None:
        if agreement.own_network:
            raise ValueError(
                f"the collaboration is about a network of its own, {agreement.model}; build it here and say so: "
                "--model package.module:build."
            )
        network = builder(agreement.model, channels=len(agreement.mean))
    elif not agreement.own_network:
        raise ValueError(f"the collaboration is about the paper's {agreement.model}; leave out --model.")
    model = network()
    check_network(agreement, model)
    return model


def _spent(stand: Stand) -> str:
    return UNPROTECTED if stand.claim is None else str(stand.claim)


def _check_schema(agreed: str, own: str) -> None:
    """Refuse a table whose declared columns are not those of the collaboration; the first difference is named."""
    if agreed and not own:
        raise ValueError(
            "the collaboration is about tables with a schema; give yours: --schema FILE. Nothing was sent."
        )
    if agreed and agreed != own:
        raise ValueError(
            f"the schema here is not the collaboration's: {_difference(json.loads(own), json.loads(agreed))}. Nothing "
            "was sent; columns, their order, bounds and values must be the same everywhere."
        )


def _difference(here: Any, there: Any, place: str = "") -> str:
    """Return where two JSON values first differ."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in {**here, **there}:
            if key not in here or key not in there:
                return f"{place}{key} is only {'here' if key in here else 'there'}"
            if here[key] != there[key]:
                return _difference(here[key], there[key], f"{place}{key}.")
        return f"the order of {place.rstrip('.') or 'its parts'} is another: {', '.join(here)} here"
    return f"{place.rstrip('.')} is {str(here)[:200]} here and {str(there)[:200]} there"


def _check_records(agreement: Agreement, dataset: Dataset[Any], model: nn.Module, loss: Loss, *, private: bool) -> None:
    """Refuse records of another shape than agreed, or that the network or the loss does not take."""
    found = record_shape(dataset)
    if agreement.shape and found != agreement.shape:
        raise ValueError(
            f"the records here have inputs of shape {found}, but the collaboration is about {agreement.shape}. Nothing "
            "was sent: bring yours to that shape."
        )
    check_fits(model, dataset, loss, private=private)


def _check_masks(agreement: Agreement, *, wanted: int, certified: bool) -> None:
    """Refuse to upload unmasked, or masked among fewer, what was to be masked among ``wanted``."""
    if agreement.pool < wanted:
        raise ValueError(
            f"uploads are to be masked among at least {wanted}, but the server "
            + (f"forms rounds of {agreement.pool}." if agreement.pool else "wants them as they are.")
            + " Nothing was sent."
        )
    if agreement.pool and not certified:
        raise ValueError(
            "masked uploads need certificates, which show with whom the masks are shared; give the folder of --keys."
        )


def join(
    shards: Sequence[Shard],
    name: str,
    credentials: Credentials | None,
    records: Any,
    folder: Path,
    settings: Settings,
    *,
    network: Network | None = None,
    loss: Loss = F.cross_entropy,
    schema: str = "",
    pool: int = 0,
    ledger: Path | None = None,
    lost_key: bool = False,
    older_server: bool = False,
    progress: Callable[[Stand], None] | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> Stand:
    """Exchange until the planned epochs are done or the budget is spent; after a crash, call it again.

    ``records`` are images (bytes) and labels for the paper's networks; with a ``network`` of one's own they are a data
    set, or a tuple of tensors, as ``network()`` and ``loss`` take them, perhaps of a table
    with the declared ``schema`` (JSON).

    The ledger is FOLDER/ledger.jsonl; the position, what is not acknowledged and what must not change are in
    FOLDER/participant.sqlite. With ``pool`` uploads are masked among so many, or none is made. Another ``ledger``, of
    another collaboration, is continued: the budget is then for all that is in it. ``lost_key`` says that another key
    holder may have uploaded under this name: their uploads are skipped, and this folder, its ledger and its budget go
    on. ``older_server`` says that the server was put back from a backup and has lost uploads of ours: they stay
    charged, are not sent again, and their numbers are given up. ``ended`` is asked between exchanges whether to stop
    there.
    """
    agreement = shards[0].agreement
    model = _own_model(agreement, network)
    images = not agreement.own_network
    _check_schema(agreement.schema, schema)
    if images:
        check_images(records[0], agreement.shape, len(agreement.mean))
        count_of = len(records[0])
    else:
        records = as_dataset(records)
        _check_records(agreement, records, model, loss, private=isinstance(settings.privacy, LocalDpSgd))
        count_of = count(records)
    check_promised(agreement, settings)
    _check_masks(agreement, wanted=pool, certified=credentials is not None)
    agreed = Agreed(settings.upload) if agreement.pool else None
    with ExitStack() as stack:
        outbox = open_outbox(folder, name, shards)  # before all else: it makes the folder, for its owner alone
        stack.callback(outbox.close)
        check_protection(outbox, settings, records=count_of, ledger=ledger)
        account = Account(ledger or folder / "ledger.jsonl", budget(settings), outbox)
        stack.callback(account.close)
        workshop = Workshop(
            settings,
            records=count_of,
            parameters=agreement.parameters,
            places=agreed,
            spent=spent_before(outbox, ledger),
        )
        source = SecureSource()
        if images:
            common = Scale(mean=agreement.mean, std=agreement.std)
            if workshop.normalisation is not None:
                book = account.open(training_header(name, source))
                common = own_scale(folder, records[0], workshop.normalisation, book, source)
                outbox.note_charged(len(book))
            records = TensorDataset(common.apply(shokri.inputs(records[0])), records[1])
        elif workshop.normalisation is not None:
            raise ValueError("private normalisation is for images; normalise a data set of your own by public numbers.")
        participant = workshop.participant(name, model, records, source=source, ledger=account.open, loss=loss)
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
                older_server=older_server,
            )
        else:
            membership = Membership(
                participant,
                shards,
                outbox,
                download=settings.download,
                charged=lambda: account.steps,
                lost_key=lost_key,
                older_server=older_server,
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

        try:
            membership.deliver()
            if membership.done == 0:
                membership.start_from_server()
            state = stand()
            while membership.done < settings.epochs:
                if ended():
                    raise Ended("asked to end between two exchanges")
                membership.exchange()
                state = stand()
                membership.report(_spent(state))
                if progress is not None:
                    progress(state)
        except (BudgetExceeded, Ended, Refused) as error:
            if isinstance(error, Refused) and error.reason is not Reason.ALONE:
                raise
            log.warning("stopped after %d of %d uploads: %s", membership.done, settings.epochs, error)
            state = stand(str(error))
            gone = not isinstance(error, Ended)
        else:
            gone = True
        if gone:
            membership.report(_spent(state))
            membership.leave()
        with suppress(Ended):
            membership.start_from_server()  # to leave with what all have learned
        return state
