"""``tacit collaborate serve|join``: the collaboration over a real network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.admission import State
from tacit.cli.output import number, show, whole
from tacit.cli.shared import (
    Batch,
    ClipNorm,
    Delta,
    Download,
    Epochs,
    Epsilon,
    Json,
    Mechanism,
    Normalisation,
    Rate,
    Selected,
    Threshold,
    private,
)

if TYPE_CHECKING:
    from tacit.collaboration import Settings
    from tacit.collaboration.network import Agreement, Credentials
    from tacit.collaboration.network.joining import Stand

_Keys = Annotated[
    Path | None, typer.Option("--keys", help="The folder with the certificates that `tacit collaborate keys` made.")
]
_DAY = 86400.0
_Insecure = Annotated[
    bool,
    typer.Option("--insecure-loopback", help="Without TLS, for a test on this machine: names are believed as given."),
]


def serve(
    state: State,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = "127.0.0.1:8470",
    keys: _Keys = None,
    model: Annotated[str | None, typer.Option(help="mlp or cnn; needed once, to begin.")] = None,
    admit: Annotated[list[str] | None, typer.Option(help="Name of a participant; can be given often.")] = None,
    bound: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="γ: values beyond are refused [0.01].")
    ] = None,
    upload: Annotated[
        float | None, typer.Option(parser=number, metavar="FRACTION", help="θ_u: most of the parameters at once [0.1].")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="round-robin, random-order or asynchronous [round-robin].")
    ] = None,
    pool: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="WHOLE", help="Take only masked sums over at least so many participants."),
    ] = None,
    part: Annotated[
        str | None, typer.Option("--slice", help="FIRST:LAST of the parameters, if other servers own the rest.")
    ] = None,
    validate: Annotated[
        str | None, typer.Option(help="Public records: a data set of `tacit data`, or FILE.npz with images and labels.")
    ] = None,
    lease: Annotated[float, typer.Option(parser=number, metavar="SECONDS", help="The longest a turn lasts.")] = 600.0,
    patience: Annotated[
        float, typer.Option(parser=number, metavar="SECONDS", help="How long a turn waits for whoever is next.")
    ] = 10.0,
    status_port: Annotated[
        int | None, typer.Option(parser=whole, metavar="PORT", help="Show a status page on this machine.")
    ] = None,
    status_host: Annotated[
        str, typer.Option(help="Show it on this address instead; anybody who reaches it can read it.")
    ] = "127.0.0.1",
    insecure: _Insecure = False,
    as_json: Json = False,
) -> None:
    """Run the parameter server of a collaboration until it is interrupted; started again, it goes on from its state.

    \b
    Inputs are normalised, everywhere, by mean and standard deviation of the public records of --validate, which must
    be the same for all servers of a collaboration. A server of a slice has no whole model whose accuracy it could show.

    \b
    Examples:
      tacit collaborate serve --state run --model mlp --keys keys --listen 0.0.0.0:8470 --admit north --admit south
      tacit collaborate serve --state run --keys keys --listen 0.0.0.0:8470 --status-port 8080
    """
    import logging
    import signal
    import threading

    from tacit.collaboration.network import GrpcServer, Service
    from tacit.collaboration.network.hosting import Judge, Terms, open_state
    from tacit.collaboration.network.records import public_records
    from tacit.collaboration.network.status import StatusPage

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    credentials = _credentials(keys, "server", insecure)
    _warn(credentials)
    public = None if validate is None else public_records(validate)
    terms = Terms(model=model, bound=bound, upload=upload, protocol=protocol, pool=pool, part=_slice(part))
    service = Service(open_state(state, terms, admit or (), public), lease=lease, patience=patience)
    server = GrpcServer(service, listen, credentials)
    whole_model = service.agreement.size == service.agreement.parameters
    judge = Judge(service, public) if public is not None and whole_model else None
    page = None if status_port is None else StatusPage(service, judge, status_port, host=status_host)
    ended = threading.Event()
    for wanted in (signal.SIGINT, signal.SIGTERM):
        signal.signal(wanted, lambda *_: ended.set())
    for part_of in (server, judge, page):
        if part_of is not None:
            part_of.start()
    address = f"{listen.rpartition(':')[0]}:{server.port}"
    facts = {"listening": address, "status": None if page is None else page.address, **_agreed(service.agreement)}
    lines = [f"listening on {address}" + ("" if credentials is not None else ", without TLS")]
    show(facts, [*lines, *([] if page is None else [f"status page {page.address}"])], as_json=as_json)
    sys.stdout.flush()
    while not ended.wait(_DAY):
        _warn(credentials)
    for other in (page, judge):
        if other is not None:
            other.stop()
    server.stop()


def join(
    server: Annotated[list[str], typer.Option(help="HOST:PORT; several if each owns a slice of the parameters.")],
    data: Annotated[str, typer.Option(help="FILE.npz with images and labels; or a data set, or rows: mnist:0-600.")],
    name: Annotated[str, typer.Option(help="Who one is: the name of the certificate.")],
    keys: _Keys = None,
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
    insecure: _Insecure = False,
    as_json: Json = False,
) -> None:
    """Take part in a collaboration with records that stay here; after a crash, the same command goes on.

    \b
    Examples:
      tacit collaborate join --server training.example.org:8470 --keys keys --name north --data north.npz --epsilon 8
      tacit collaborate join --server 127.0.0.1:8470 --keys keys --name a --data mnist:0-600 --without-noise
    """
    from safetensors.torch import save_file

    from tacit.collaboration.network import Link, find_shards
    from tacit.collaboration.network.certificates import check_name
    from tacit.collaboration.network.joining import agreed_settings
    from tacit.collaboration.network.joining import join as take_part
    from tacit.collaboration.network.records import training_records

    if (epsilon is None) != without_noise:
        raise ValueError("say --epsilon E for private uploads, or --without-noise for plain ones; one of them.")
    credentials = _credentials(keys, check_name(name), insecure)
    _warn(credentials)
    records = training_records(data)
    links = [Link(address, credentials, name=name) for address in server]
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
    with _bar(epochs) as progress:
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
            progress=progress,
        )
    for link in links:
        link.close()
    save_file(stand.model.state_dict(), folder / "model.safetensors")
    show(_facts(stand, folder, ledger), _lines(stand, folder), as_json=as_json)


def _credentials(keys: Path | None, name: str, insecure: bool) -> Credentials | None:
    from tacit.collaboration.network import Credentials

    if (keys is None) != insecure:
        raise ValueError("give --keys with the certificates (or, for a test on this machine, --insecure-loopback).")
    return None if keys is None else Credentials.read(keys, name)


def _warn(credentials: Credentials | None) -> None:
    """Say in time which certificates expire; refuse to begin with one that has."""
    import logging

    for warning in [] if credentials is None else credentials.warnings():
        logging.getLogger("tacit").warning("%s", warning)


def _slice(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition(":")
    return whole(first), whole(last)


def _own(**settings: Any) -> Settings:
    from tacit.collaboration import Settings

    return Settings(participants=1, **settings)


def _agreed(agreement: Agreement) -> dict[str, Any]:
    import json

    return dict(json.loads(agreement.to_json()))


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


def _bar(total: int) -> Any:
    from collections.abc import Callable, Iterator
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    @contextmanager
    def shown() -> Iterator[Callable[[Stand], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("uploads"))
        with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
            task = bar.add_task("waiting", total=total)

            def report(stand: Stand) -> None:
                spent = "no noise" if stand.claim is None else f"ε ≤ {stand.claim.whole.epsilon:.4g}"
                bar.update(task, completed=stand.uploads, description=spent)

            yield report

    return shown()
