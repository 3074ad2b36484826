"""Options that the simulation of a collaboration and taking part in a real one have in common."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.output import number, whole

if TYPE_CHECKING:
    from tacit.collaboration import Settings
    from tacit.collaboration.network import Credentials

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Epochs = Annotated[int, typer.Option(parser=whole, metavar="WHOLE", help="Exchanges of each participant.")]
Download = Annotated[
    float,
    typer.Option(parser=number, metavar="FRACTION", help="θ_d: share of the parameters downloaded in an exchange."),
]
Selected = Annotated[
    str, typer.Option(help="largest, threshold or random; sparse-vector and gaussian make their own choice.")
]
Threshold = Annotated[
    float, typer.Option(parser=number, metavar="NUMBER", help="τ: for --selection threshold and sparse-vector.")
]
Rate = Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="α of local SGD.")]
Batch = Annotated[int, typer.Option(parser=whole, metavar="WHOLE", help="Records in a minibatch of local SGD.")]
Epsilon = Annotated[
    float | None,
    typer.Option(parser=number, metavar="NUMBER", help="Private uploads: honest ε of the whole training."),
]
Mechanism = Annotated[
    str, typer.Option(help="With --epsilon: dp-sgd (protects examples), gaussian or sparse-vector (the participant).")
]
ClipNorm = Annotated[
    float | None,
    typer.Option(
        parser=number, metavar="NUMBER", help="L2 norm of an example's gradient (dp-sgd) or an upload (gaussian)."
    ),
]
Delta = Annotated[float, typer.Option(parser=number, metavar="NUMBER", help="δ of the honest ε.")]
Model = Annotated[str, typer.Option(help="mlp or cnn: the networks of the paper.")]
Participants = Annotated[int, typer.Option(parser=whole, metavar="WHOLE", help="Number of participants.")]
Upload = Annotated[
    float, typer.Option(parser=number, metavar="FRACTION", help="θ_u: share of the parameters uploaded in an exchange.")
]
Seed = Annotated[
    int | None,
    typer.Option(parser=whole, metavar="WHOLE", help="Repeatable, for debugging: the noise gives no protection."),
]
DAY = 86400.0
Keys = Annotated[
    Path | None, typer.Option("--keys", help="The folder with the certificates that `tacit collaborate keys` made.")
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure-loopback", help="Without TLS, for a test on this machine: names are believed as given."),
]
Normalisation = Annotated[
    float | None,
    typer.Option(
        parser=number,
        metavar="NOISE",
        help="Release mean and standard deviation of the inputs with this noise multiplier, within --epsilon "
        "(dp-sgd) [default: taken from public records].",
    ),
]


def private(
    settings: Settings,
    mechanism: str,
    *,
    epsilon: float | None,
    clip_norm: float | None,
    normalisation: float | None,
) -> Settings:
    """Return the settings, with a mechanism if the options ask for one."""
    from dataclasses import replace

    from tacit import collaboration

    if epsilon is None:
        if normalisation is not None:
            raise ValueError("private normalisation is part of a budget; give --epsilon as well.")
        return settings
    privacy = collaboration.mechanism(
        mechanism, epsilon=epsilon, settings=settings, clip_norm=clip_norm, normalisation=normalisation
    )
    return replace(settings, privacy=privacy)


def credentials_of(keys: Path | None, name: str, insecure: bool) -> Credentials | None:
    from tacit.collaboration.network import Credentials

    if (keys is None) != insecure:
        raise ValueError("give --keys with the certificates (or, for a test on this machine, --insecure-loopback).")
    return None if keys is None else Credentials.read(keys, name)


def warn_of_expiry(credentials: Credentials | None) -> None:
    """Warn of certificates that expire soon; refuse to begin with an expired one."""
    import logging

    for warning in [] if credentials is None else credentials.warnings():
        logging.getLogger("tacit").warning("%s", warning)


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Let SIGTERM set the event that is yielded instead of ending the process; in other threads nothing changes."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # others cannot have a handler
        yield asked
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, previous)
