"""``tacit collaborate serve``: the parameter server of a collaboration over a real network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.admission import State
from tacit.cli.output import number, show, whole
from tacit.cli.shared import DAY, Insecure, Json, Keys, credentials_of, warn_of_expiry

if TYPE_CHECKING:
    from tacit.collaboration.network import Agreement


def serve(
    state: State,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = "127.0.0.1:8470",
    keys: Keys = None,
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
        str | None,
        typer.Option(
            help="Public records like the participants' (same size, same classes): a data set of `tacit data`, or "
            "FILE.npz with images and labels."
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="Size of all images, 28x28 or 3x32x32 [default: that of the public records]."),
    ] = None,
    lease: Annotated[float, typer.Option(parser=number, metavar="SECONDS", help="The longest a turn lasts.")] = 60.0,
    patience: Annotated[
        float, typer.Option(parser=number, metavar="SECONDS", help="How long a turn waits for whoever is next.")
    ] = 10.0,
    status_port: Annotated[
        int | None, typer.Option(parser=whole, metavar="PORT", help="Show a status page on this machine.")
    ] = None,
    status_host: Annotated[
        str, typer.Option(help="Show it on this address instead; anybody who reaches it can read it.")
    ] = "127.0.0.1",
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Run the parameter server of a collaboration until it is interrupted; started again, it goes on from its state.

    \b
    Inputs are normalised, everywhere, by mean and standard deviation of the public records of --validate, which must
    be the same for all servers of a collaboration, and like the participants' own: images of another size are refused,
    on either side. A server of a slice has no whole model whose accuracy it could show.

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
    credentials = credentials_of(keys, "server", insecure)
    warn_of_expiry(credentials)
    public = None if validate is None else public_records(validate)
    terms = Terms(
        model=model, bound=bound, upload=upload, protocol=protocol, pool=pool, part=_slice(part), image=_image(image)
    )
    service = Service(open_state(state, terms, admit or (), public), lease=lease, patience=patience)
    server = GrpcServer(service, listen, credentials)
    whole_model = service.agreement.size == service.agreement.parameters
    name = "" if validate is None else Path(validate).name
    judge = Judge(service, public, name=name) if public is not None and whole_model else None
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
    while not ended.wait(DAY):
        warn_of_expiry(credentials)
    for other in (page, judge):
        if other is not None:
            other.stop()
    server.stop()


def _image(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    sizes = tuple(whole(part) for part in text.lower().split("x"))
    if len(sizes) not in (2, 3) or min(sizes) < 1:
        raise ValueError(f"--image is {text!r}; write HEIGHTxWIDTH or CHANNELSxHEIGHTxWIDTH, for example 28x28.")
    return sizes if len(sizes) == 3 else (1, *sizes)


def _slice(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition(":")
    return whole(first), whole(last)


def _agreed(agreement: Agreement) -> dict[str, Any]:
    import json

    return dict(json.loads(agreement.to_json()))
