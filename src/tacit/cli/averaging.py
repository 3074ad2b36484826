"""``tacit collaborate average`` and ``contribute``: averaging that protects whole participants."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.logs import LogFormat, configure
from tacit.cli.output import number, show, whole
from tacit.cli.own_code import imported, records_of
from tacit.cli.shared import Batch, Delta, Insecure, Json, Keys, Rate, asked_to_end, credentials_of

_Model = Annotated[str, typer.Option(help="package.module:build, a function that returns the network.")]


def average(
    state: Annotated[Path, typer.Option("--state", help="The folder with the server's model and ledger.")],
    model: _Model,
    admit: Annotated[list[str], typer.Option(help="Name of a participant; can be given often.")],
    epsilon: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="ε of a whole participant, for all rounds.")
    ],
    rounds: Annotated[int, typer.Option(parser=whole, metavar="WHOLE", help="How many.")] = 30,
    clip_norm: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="L2 norm of a participant's change of the model.")
    ] = 1.0,
    lot_size: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="WHOLE", help="Of the participants, drawn in a round on average [all]."),
    ] = None,
    delta: Delta = 1e-5,
    noise_by: Annotated[
        str,
        typer.Option(
            help="server: it sees the changes. participants: it sees one sum, masked, with their noise in it."
        ),
    ] = "server",
    least: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="WHOLE", help="Participants that a round needs; others may vanish [all]."),
    ] = None,
    colluding: Annotated[
        int,
        typer.Option(parser=whole, metavar="WHOLE", help="So many participants' noise may be known [1: each own]."),
    ] = 1,
    patience: Annotated[
        float, typer.Option(parser=number, metavar="SECONDS", help="The longest that a round waits for answers.")
    ] = 600.0,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = "127.0.0.1:8470",
    keys: Keys = None,
    insecure: Insecure = False,
    log_format: LogFormat = "text",
    as_json: Json = False,
) -> None:
    """Average the changes of whole participants, with noise.

    The noise is the server's or the participants' own; runs until it is interrupted.

    \b
    With the server's noise the server is trusted: it sees the changes before noise. With --noise-by participants it
    sees only sums of masked changes that have the noise in them. What it releases, the model after each round,
    protects every participant as a whole. If you start it again with the same options, it continues.

    \b
    Example:
      tacit collaborate average --state run --model hospital.models:build --keys keys --epsilon 8 --rounds 40 \\
          --admit north --admit south --admit east
    """
    import signal
    import threading

    from tacit import collaboration
    from tacit.ledger import Budget

    configure(log_format)
    credentials_of(keys, "server", insecure)
    averaging = collaboration.Averaging(
        network=imported("--model", model),
        folder=state,
        population=len(admit),
        lot_size=lot_size or len(admit),
        clip_norm=clip_norm,
        rounds=rounds,
        budget=Budget(epsilon, delta),
        least=least or (len(admit) if lot_size is None else 1),
        patience=patience,
        noise_by=noise_by,  # type: ignore[arg-type]  # checked there
        colluding=colluding,
    )
    ended = threading.Event()
    with collaboration.average(averaging, admit=admit, keys=keys, listen=listen) as server:
        for wanted in (signal.SIGINT, signal.SIGTERM):
            signal.signal(wanted, lambda *_: ended.set())
        facts = {"listening": server.address, "noise_multiplier": averaging.noise}
        show(facts, [f"listening on {server.address}; noise multiplier {averaging.noise:.4g}"], as_json=as_json)
        sys.stdout.flush()
        ended.wait()


def contribute(
    server: Annotated[str, typer.Option(help="HOST:PORT of `tacit collaborate average`.")],
    model: _Model,
    data: Annotated[str, typer.Option(help="package.module:dataset, or a table with --schema.")],
    name: Annotated[str, typer.Option(help="Your name, as in the certificate.")],
    schema: Annotated[Path | None, typer.Option(help="The columns of the table, a JSON file.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="package.module:loss(outputs, targets), the mean of a batch [cross-entropy].")
    ] = None,
    keys: Keys = None,
    out: Annotated[Path | None, typer.Option(help="One's own folder: ledger, model [default: runs/NAME].")] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="Train by DP-SGD as well: ε of an example, all rounds."),
    ] = None,
    most_epsilon: Annotated[
        float | None,
        typer.Option(
            parser=number, metavar="NUMBER", help="Refuse a server that promises more, or with δ above --delta."
        ),
    ] = None,
    masked: Annotated[bool, typer.Option("--masked", help="Refuse a server that would see one's own change.")] = False,
    delta: Delta = 1e-5,
    learning_rate: Rate = 0.02,
    batch_size: Batch = 32,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Take part in averaging.

    Prints the ε of the whole participant, and with your own noise the ε of an example.

    \b
    Example:
      tacit collaborate contribute --server training.example.org:8470 --keys keys --name north \\
          --model hospital.models:build --data patients.csv --schema schema.json --most-epsilon 8
    """
    from safetensors.torch import save

    from tacit import collaboration
    from tacit._files import write_whole
    from tacit.collaboration.network.link import Ended

    credentials_of(keys, name, insecure)
    folder = out or Path("runs") / name
    own: dict[str, Any] = {} if loss is None else {"loss": imported("--loss", loss)}
    try:
        with asked_to_end() as asked:
            found = collaboration.contribute(
                server,
                name=name,
                network=imported("--model", model),
                dataset=records_of("--data", data, schema),
                keys=keys,
                folder=folder,
                privacy=None if epsilon is None else collaboration.LocalDpSgd(epsilon=epsilon, delta=delta),
                most_epsilon=most_epsilon,
                masked=masked,
                tell=lambda text: print(text, file=sys.stderr),
                learning_rate=learning_rate,
                batch_size=batch_size,
                delta=delta,
                ended=asked.is_set,
                **own,
            )
    except Ended as error:  # before the first round
        return show({"rounds": None, "stopped": str(error)}, [f"{error}; the same command goes on"], as_json=as_json)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "model.safetensors", save(found.model.state_dict()))
    facts = {
        "rounds": found.rounds,
        "stopped": found.stopped,
        "participant_epsilon": found.central_epsilon,
        "example_epsilon": None if found.local is None else found.local.whole.epsilon,
        "model": str(folder / "model.safetensors"),
    }
    show(facts, [f"{found.rounds} rounds: {found.stopped}", *found.report().splitlines()], as_json=as_json)
