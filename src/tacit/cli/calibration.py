"""``tacit collaborate calibrate``: the bound γ and the threshold τ from public records."""

from __future__ import annotations

from typing import Annotated

import typer

from tacit.cli.output import number, show, whole
from tacit.cli.shared import Batch, Epochs, Json, Model, Participants, Rate, Seed, Upload


def calibrate(
    public: Annotated[
        str, typer.Option("--public-dataset", help="Public records that look like the private ones.")
    ] = "digits",
    last: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="WHOLE",
            help="Only so many of its training records are public, the last ones; a fifth of them is judged by.",
        ),
    ] = None,
    model: Model = "mlp",
    records: Annotated[
        int, typer.Option(parser=whole, metavar="WHOLE", help="Records that each participant will hold.")
    ] = 600,
    participants: Participants = 30,
    upload: Upload = 0.1,
    epochs: Epochs = 15,
    learning_rate: Rate = 0.02,
    batch_size: Batch = 32,
    close: Annotated[
        float,
        typer.Option(
            parser=number,
            metavar="NUMBER",
            help="Take the smallest γ that comes so close to the best accuracy; 0 for uploads without noise.",
        ),
    ] = 0.005,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Find the bound γ and the threshold τ on public data.

    Give them as --bound and --threshold. Never choose them on private records.

    \b
    Examples:
      tacit collaborate calibrate
      tacit collaborate calibrate --public-dataset digits --model cnn --upload 0.01 --json
      tacit collaborate calibrate --public-dataset mnist --last 10000 --learning-rate 0.1 --close 0
    """
    from dataclasses import asdict

    from tacit import collaboration

    settings = collaboration.Settings(
        participants=participants,
        epochs=epochs,
        upload=upload,
        learning_rate=learning_rate,
        batch_size=batch_size,
        seed=seed,
    )
    known = collaboration.problem(public, model)
    known = known if last is None else known.last(last)
    found = collaboration.calibrate(known, settings, records=records, close=close)
    lines = [
        f"bound γ       {found.bound:.3g}",
        f"threshold τ   {found.threshold:.3g}",
        f"clip norm     {found.clip_norm:.3g}  (of an upload, for --mechanism gaussian)",
        f"accuracy on {public}: {found.accuracy:.4f} with both; {found.unbounded_accuracy:.4f} with neither",
    ]
    show({"public_dataset": public, **asdict(found)}, lines, as_json=as_json)
