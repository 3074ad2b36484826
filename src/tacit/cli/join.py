"""``tacit collaborate join``: take part in a collaboration over a real network."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.output import show, whole
from tacit.cli.own_code import imported, is_named, is_table, records_of, schema_text
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
    asked_to_end,
    credentials_of,
    private,
    warn_of_expiry,
)

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.collaboration import Settings
    from tacit.collaboration.network import Credentials
    from tacit.collaboration.network.joining import Stand
    from tacit.collaboration.privacy import Privacy


def join(
    server: Annotated[list[str], typer.Option(help="HOST:PORT; several if each owns a slice of the parameters.")],
    data: Annotated[
        str,
        typer.Option(
            help="package.module:dataset, or a table with --schema; for mlp and cnn FILE.npz with images and labels, "
            "or a data set, or rows: mnist:0-600."
        ),
    ],
    name: Annotated[str, typer.Option(help="Your name, as in the certificate.")],
    model: Annotated[
        str | None, typer.Option(help="package.module:build, a function that returns the collaboration's network.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="package.module:loss(outputs, targets), the mean of a batch [cross-entropy].")
    ] = None,
    schema: Annotated[Path | None, typer.Option(help="The columns of the table, a JSON file.")] = None,
    keys: Keys = None,
    out: Annotated[Path | None, typer.Option(help="Your folder: ledger, outbox, model [default: runs/NAME].")] = None,
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
            help="Continue after another person made uploads with a lost key; OUT and the ledger must be the newest.",
        ),
    ] = False,
    older_server: Annotated[
        bool,
        typer.Option(
            "--older-server",
            help="Go on with a server that was put back from a backup: what it lost stays charged, and is given up.",
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
    """Take part in a collaboration; the records stay here.

    After a crash, give the same command again: it continues.

    \b
    Examples:
      tacit collaborate join --server training.example.org:8470 --keys keys --name north --data north.npz --epsilon 8
      tacit collaborate join --server 127.0.0.1:8470 --keys keys --name a --data mnist:0-600 --without-noise
      tacit collaborate join --server training.example.org:8470 --keys keys --name north --epsilon 8 \\
          --model hospital.models:build --data patients.csv --schema schema.json
    """
    from rich.console import Console
    from safetensors.torch import save

    from tacit import collaboration
    from tacit._files import write_whole
    from tacit.collaboration.network.certificates import check_name
    from tacit.collaboration.network.link import Ended

    if (epsilon is None) != without_noise:
        raise ValueError("say --epsilon E for private uploads, or --without-noise for plain ones; one of them.")
    credentials = credentials_of(keys, check_name(name), insecure)
    warn_of_expiry(credentials)
    records, folder = _records(data, schema), out or Path("runs") / name
    console = Console(file=sys.stderr)

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    def privacy(settings: Settings) -> Privacy | None:
        tell(f"connected; {epochs} exchanges; records stay here; ledger and outbox in {folder}")
        wanted = private(settings, mechanism, epsilon=epsilon, clip_norm=clip_norm, normalisation=private_normalisation)
        return wanted.privacy

    tell(f"connecting to {', '.join(server)} as {_identity(name, credentials)}")
    warned = time.monotonic()

    def daily(stand: Stand) -> None:
        nonlocal warned
        progress(stand)
        if time.monotonic() - warned > DAY:
            warned = time.monotonic()
            warn_of_expiry(credentials)

    try:
        with asked_to_end() as asked, _bar(epochs, console) as progress:
            stand = collaboration.join(
                server,
                name=name,
                dataset=records,
                privacy=privacy,
                network=None if model is None else imported("--model", model),
                **({} if loss is None else {"loss": imported("--loss", loss)}),
                schema=schema_text(schema),
                keys=keys,
                folder=folder,
                epochs=epochs,
                pool=pool,
                ledger=ledger,
                lost_key=after_lost_key,
                older_server=older_server,
                tell=tell,
                progress=daily,
                ended=asked.is_set,
                download=download,
                selection=selection,
                threshold=threshold,
                learning_rate=learning_rate,
                batch_size=batch_size,
                delta=delta,
            )
    except Ended as error:  # before anything was agreed; later a stand says it
        facts = {"uploads": None, "planned": epochs, "stopped": str(error)}
        return show(facts, [f"{error}; the same command goes on"], as_json=as_json)
    write_whole(folder / "model.safetensors", save(stand.model.state_dict()))
    show(_facts(stand, folder, ledger), _lines(stand, folder), as_json=as_json)


def _identity(name: str, credentials: Credentials | None) -> str:
    from tacit.collaboration.network.certificates import identify, serial_text

    if credentials is None:
        return f"{name}, without TLS"
    own = identify(credentials.certificate)
    return f"{name}, certificate {serial_text(own.serial or 0)} until {own.expires:%Y-%m-%d}"


def _records(data: str, schema: Path | None) -> Any:
    """Return the records that ``--data`` names."""
    from tacit.collaboration.network.records import training_records

    return records_of("--data", data, schema) if is_named(data) or is_table(data) else training_records(data)


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
