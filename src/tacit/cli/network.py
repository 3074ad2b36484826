"""``tacit collaborate serve``: the parameter server of a collaboration over a real network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.admission import State
from tacit.cli.logs import LogFormat, configure
from tacit.cli.output import number, show, whole
from tacit.cli.own_code import imported, is_named, is_table, records_of, schema_text
from tacit.cli.shared import DAY, Insecure, Json, Keys, credentials_of, warn_of_expiry

if TYPE_CHECKING:
    from tacit.collaboration.network import Agreement
    from tacit.collaboration.network.status import Access


def serve(
    state: State,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = "127.0.0.1:8470",
    keys: Keys = None,
    model: Annotated[
        str | None,
        typer.Option(help="package.module:build, a function that returns your network; or mlp, cnn. Needed to begin."),
    ] = None,
    admit: Annotated[list[str] | None, typer.Option(help="Name of a participant; can be given often.")] = None,
    bound: Annotated[
        float | None,
        typer.Option(
            parser=number, metavar="NUMBER", help="γ: values beyond are refused [0.01; 1 with --mechanism dp-sgd]."
        ),
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
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="How all participants protect their uploads: dp-sgd, gaussian, sparse-vector or plain [any]."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="The largest ε that all promise to spend [each decides]."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="The δ of that ε [each decides].")
    ] = None,
    validate: Annotated[
        str | None,
        typer.Option(
            help="Public records like the participants' (same shape, same classes): package.module:dataset, a table "
            "with --schema; for mlp and cnn a data set of `tacit data`, or FILE.npz with images and labels."
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="The columns of everybody's table, a JSON file; participants compare theirs.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE", help="Of one record's input: 30 numbers, 28x28, 3x32x32 [that of the public images]."
        ),
    ] = None,
    lease: Annotated[float, typer.Option(parser=number, metavar="SECONDS", help="The longest a turn lasts.")] = 60.0,
    patience: Annotated[
        float, typer.Option(parser=number, metavar="SECONDS", help="How long a turn waits for the next participant.")
    ] = 10.0,
    status_port: Annotated[
        int | None, typer.Option(parser=whole, metavar="PORT", help="Show a status page on this machine.")
    ] = None,
    status_host: Annotated[
        str, typer.Option(help="Show it on this address instead; anyone who reaches it can read it; see the next two.")
    ] = "127.0.0.1",
    status_tls: Annotated[
        bool,
        typer.Option("--status-tls", help="With TLS; readers show a certificate of --keys' authority, or a password."),
    ] = False,
    status_password: Annotated[
        Path | None, typer.Option(help="A file with one line, user:password, that readers must know.")
    ] = None,
    log_format: LogFormat = "text",
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Run the parameter server until it is interrupted.

    If you start it again, it continues from its state.

    \b
    Images for mlp and cnn are normalised, everywhere, by mean and standard deviation of the public records of
    --validate, which must be the same for all servers of a collaboration, and like the participants' own: images of
    another size are refused, on either side. A server of a slice shows no accuracy, because it does not have the
    whole model.

    \b
    Examples:
      tacit collaborate serve --state run --model hospital.models:build --keys keys --listen 0.0.0.0:8470 \\
          --mechanism dp-sgd --epsilon 8 --delta 1e-5 --admit north --admit south --admit east
      tacit collaborate serve --state run --model mlp --keys keys --listen 0.0.0.0:8470 --admit north --admit south
      tacit collaborate serve --state run --keys keys --listen 0.0.0.0:8470 --status-port 8080
    """
    import signal

    from tacit import collaboration

    configure(log_format)
    if status_tls and keys is None:
        raise ValueError("--status-tls needs --keys with the server's certificate.")
    warn_of_expiry(credentials_of(keys, "server", insecure))
    network = imported("--model", model) if model is not None and is_named(model) else model
    server = collaboration.serve(
        state,
        network=network,
        keys=keys,
        listen=listen,
        admit=admit or (),
        validate=_public(validate, schema),
        validate_name="" if validate is None else Path(validate).name,
        lease=lease,
        patience=patience,
        status=_access(status_port, status_host, keys if status_tls else None, status_password),
        bound=bound,
        upload=upload,
        protocol=protocol,
        pool=pool,
        part=_slice(part),
        shape=_shape(shape, images=model in ("mlp", "cnn")),
        schema=None if schema is None else schema_text(schema),
        mechanism=mechanism,
        epsilon=epsilon,
        delta=delta,
    )
    for wanted in (signal.SIGINT, signal.SIGTERM):
        signal.signal(wanted, lambda *_: server.end())
    facts = {"listening": server.address, "status": server.status, **_agreed(server.agreement)}
    lines = [f"listening on {server.address}" + ("" if keys is not None else ", without TLS")]
    show(facts, [*lines, *([] if server.status is None else [f"status page {server.status}"])], as_json=as_json)
    sys.stdout.flush()
    while not server.wait(DAY):
        warn_of_expiry(credentials_of(keys, "server", insecure))
    server.stop()


def _access(port: int | None, host: str, keys: Path | None, password: Path | None) -> Access | None:
    """Return where the status is shown and to whom, if it is."""
    from tacit.collaboration.network.status import Access

    if port is None:
        return None
    secret = None if password is None else password.read_text(encoding="utf-8").strip()
    return Access(port=port, host=host, keys=keys, password=secret)


def _public(validate: str | None, schema: Path | None) -> Any:
    """Return the public records that ``--validate`` names, if it does."""
    from tacit.collaboration.network.records import public_records

    if validate is None:
        return None
    own = is_named(validate) or is_table(validate)
    return records_of("--validate", validate, schema) if own else public_records(validate)


def _shape(text: str | None, *, images: bool) -> tuple[int, ...] | None:
    """Return the shape that ``--shape`` says; two numbers are an image of one channel where images are learned."""
    if text is None:
        return None
    sizes = tuple(whole(part) for part in text.lower().split("x"))
    if min(sizes) < 1 or (images and len(sizes) not in (2, 3)):
        raise ValueError(f"--shape is {text!r}; write numbers above 0 with x between them, for example 30 or 28x28.")
    return (1, *sizes) if images and len(sizes) == 2 else sizes


def _slice(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition(":")
    return whole(first), whole(last)


def _agreed(agreement: Agreement) -> dict[str, Any]:
    import json

    return dict(json.loads(agreement.to_json()))
