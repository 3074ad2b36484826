"""``tacit collaborate join``: take part in a collaboration over a real network."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.output import show, whole
from tacit.cli.shared import (
    DAY,
    Batch,
    ClipNorm,
    Delta,
    Download,
    Epochs,
    Epsilon,
    Insecure,
    Json,
    Keys,
    Mechanism,
    Normalisation,
    Rate,
    Selected,
    Threshold,
    credentials_of,
    private,
    warn_of_expiry,
)

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.collaboration import Settings
    from tacit.collaboration.network import Credentials
    from tacit.collaboration.network.joining import Stand


def join(
    server: Annotated[list[str], typer.Option(help="HOST:PORT; several if each owns a slice of the parameters.")],
    data: Annotated[str, typer.Option(help="FILE.npz with images and labels; or a data set, or rows: mnist:0-600.")],
    name: Annotated[str, typer.Option(help="Who one is: the name of the certificate.")],
    keys: Keys = None,
    out: Annotated[
        Path | None, typer.Option(help="One's own folder: ledger, outbox, model [default: runs/NAME].")
    ] = None,
    pool: Annotated[
        int,
        typer.Option(
            parser=whole, metavar="WHOLE", help="Upload only masked, among at least so many; 0: as the server wants it."
        ),
    ] = 0,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Continue this ledger, of another collaboration with the same records; --epsilon is then for all in "
            "it [default: OUT/ledger.jsonl]."
        ),
    ] = None,
    after_lost_key: Annotated[
        bool,
        typer.Option(
            "--after-lost-key",
            help="Go on after uploads that somebody else made with a lost key; OUT and the ledger must be the newest.",
        ),
    ] = False,
    epochs: Epochs = 15,
    epsilon: Epsilon = None,
    mechanism: Mechanism = "dp-sgd",
    clip_norm: ClipNorm = None,
    private_normalisation: Normalisation = None,
    delta: Delta = 1e-5,
    without_noise: Annotated[
        bool, typer.Option("--without-noise", help="Upload plain changes, which promise nothing about the records.")
    ] = False,
    download: Download = 1.0,
    selection: Selected = "largest",
    threshold: Threshold = 0.0001,
    learning_rate: Rate = 0.02,
    batch_size: Batch = 32,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Take part in a collaboration with records that stay here; after a crash, the same command goes on.

    \b
    Examples:
      tacit collaborate join --server training.example.org:8470 --keys keys --name north --data north.npz --epsilon 8
      tacit collaborate join --server 127.0.0.1:8470 --keys keys --name a --data mnist:0-600 --without-noise
    """
    from rich.console import Console
    from safetensors.torch import save

    from tacit._files import write_whole
    from tacit.collaboration.network import Link, find_shards
    from tacit.collaboration.network.certificates import check_name
    from tacit.collaboration.network.joining import agreed_settings
    from tacit.collaboration.network.joining import join as take_part
    from tacit.collaboration.network.records import training_records

    if (epsilon is None) != without_noise:
        raise ValueError("say --epsilon E for private uploads, or --without-noise for plain ones; one of them.")
    credentials = credentials_of(keys, check_name(name), insecure)
    warn_of_expiry(credentials)
    if credentials is not None and credentials.name != name:
        raise ValueError(f"--name is {name!r}, but the certificate {keys}/{name}.pem is for {credentials.name!r}.")
    records = training_records(data)
    console = Console(file=sys.stderr)

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    tell(f"connecting to {', '.join(server)} as {_identity(name, credentials)}")
    links = [Link(address, credentials, name=name, tell=tell) for address in server]
    shards = find_shards(links)
    settings = _own(
        download=download,
        selection=selection,
        threshold=threshold,
        learning_rate=learning_rate,
        batch_size=batch_size,
        epochs=epochs,
        delta=delta,
    )
    settings = agreed_settings(shards[0].agreement, settings)
    settings = private(settings, mechanism, epsilon=epsilon, clip_norm=clip_norm, normalisation=private_normalisation)
    folder = out or Path("runs") / name
    tell(f"connected; {epochs} exchanges, with {len(records[0])} records that stay here; ledger and outbox in {folder}")
    warned = time.monotonic()

    def daily(stand: Stand) -> None:
        nonlocal warned
        progress(stand)
        if time.monotonic() - warned > DAY:
            warned = time.monotonic()
            warn_of_expiry(credentials)

    with _bar(epochs, console) as progress:
        stand = take_part(
            shards,
            name,
            credentials,
            records,
            folder,
            settings,
            pool=pool,
            ledger=ledger,
            lost_key=after_lost_key,
            progress=daily,
        )
    for link in links:
        link.close()
    write_whole(folder / "model.safetensors", save(stand.model.state_dict()))
    show(_facts(stand, folder, ledger), _lines(stand, folder), as_json=as_json)


def _identity(name: str, credentials: Credentials | None) -> str:
    from tacit.collaboration.network.certificates import identify, serial_text

    if credentials is None:
        return f"{name}, without TLS"
    own = identify(credentials.certificate)
    return f"{name}, certificate {serial_text(own.serial or 0)} until {own.expires:%Y-%m-%d}"


def _own(**settings: Any) -> Settings:
    from tacit.collaboration import Settings

    return Settings(participants=1, **settings)


def _facts(stand: Stand, folder: Path, ledger: Path | None) -> dict[str, Any]:
    spent = None if stand.claim is None else stand.claim.whole
    return {
        "uploads": stand.uploads,
        "planned": stand.planned,
        "lost": stand.lost,
        "masked_among": list(stand.company),
        "stopped": stand.stopped,
        "epsilon": None if spent is None else spent.epsilon,
        "delta": None if spent is None else spent.delta,
        "unit": None if spent is None else spent.unit,
        "model": str(folder / "model.safetensors"),
        "ledger": None if spent is None else str(ledger or folder / "ledger.jsonl"),
    }


def _lines(stand: Stand, folder: Path) -> list[str]:
    from tacit.collaboration.network.protection import UNPROTECTED

    lines = [f"{stand.uploads} of {stand.planned} uploads" + (f", {stand.lost} of them lost" if stand.lost else "")]
    if stand.stopped is not None:
        lines.append(f"stopped: {stand.stopped}")
    lines.append(f"privacy  {UNPROTECTED if stand.claim is None else stand.claim}")
    if stand.company:
        lines.append(f"masked   among {', '.join(stand.company)}, if all of them are who they say")
    return [*lines, f"model    {folder / 'model.safetensors'}"]


def _bar(total: int, console: Console) -> Any:
    from collections.abc import Callable, Iterator
    from contextlib import contextmanager

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    @contextmanager
    def shown() -> Iterator[Callable[[Stand], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("uploads"))
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("waiting", total=total)

            def report(stand: Stand) -> None:
                spent = "no noise" if stand.claim is None else f"ε ≤ {stand.claim.whole.epsilon:.4g}"
                bar.update(task, completed=stand.uploads, description=spent)

            yield report

    return shown()
