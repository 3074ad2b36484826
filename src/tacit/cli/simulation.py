"""``tacit collaborate simulate`` and ``compare``: a collaboration in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.output import number, show
from tacit.cli.shared import (
    Batch,
    ClipNorm,
    Delta,
    Download,
    Epochs,
    Epsilon,
    Json,
    Mechanism,
    Model,
    Normalisation,
    Participants,
    Rate,
    Seed,
    Selected,
    Threshold,
    Upload,
    private,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacit.collaboration import Progress, Result, Settings

_Dataset = Annotated[str, typer.Option(help="mnist or svhn, or another of `tacit data` with 10 classes.")]
_Order = Annotated[str, typer.Option(help="round-robin, random-order or asynchronous.")]
_Share = Annotated[
    float,
    typer.Option(parser=number, metavar="FRACTION", help="Share of the training set that each participant holds."),
]
_Bound = Annotated[
    float | None,
    typer.Option(
        parser=number, metavar="NUMBER", help="γ: uploads are cut to ±γ [default: 0.01; 1 with --mechanism dp-sgd]."
    ),
]


def simulate(
    dataset: _Dataset = "mnist",
    model: Model = "mlp",
    participants: Participants = 30,
    upload: Upload = 0.1,
    download: Download = 1.0,
    protocol: _Order = "round-robin",
    selection: Selected = "largest",
    epsilon_per_epoch: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="NUMBER",
            help="Uploads by sparse vector with the paper's ε for one epoch of one participant.",
        ),
    ] = None,
    epsilon: Epsilon = None,
    mechanism: Mechanism = "dp-sgd",
    clip_norm: ClipNorm = None,
    private_normalisation: Normalisation = None,
    delta: Delta = 1e-5,
    epochs: Epochs = 15,
    share: _Share = 0.01,
    learning_rate: Rate = 0.02,
    batch_size: Batch = 32,
    bound: _Bound = None,
    threshold: Threshold = 0.0001,
    baselines: Annotated[bool, typer.Option(help="Train also on the pooled data, and alone.")] = True,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Simulate a collaboration in this process.

    For comparison it also trains on the pooled data, and each participant alone.

    \b
    The ε printed is honest: it covers all uploads of a participant in the whole training.
    Inputs are normalised by the training set's mean and standard deviation, taken to be public unless
    --private-normalisation says otherwise.

    \b
    Examples:
      tacit collaborate simulate --participants 30 --upload 0.1 --epochs 10
      tacit collaborate simulate --dataset svhn --model cnn --protocol asynchronous --json
      tacit collaborate simulate --epsilon 10 --mechanism dp-sgd --private-normalisation 10
      tacit collaborate simulate --upload 0.01 --epsilon-per-epoch 1401 --bound 0.001
    """
    from dataclasses import replace

    from tacit import collaboration

    settings = collaboration.Settings(
        participants=participants,
        epochs=epochs,
        upload=upload,
        download=download,
        protocol=protocol,  # type: ignore[arg-type]
        selection=selection,
        share=share,
        learning_rate=learning_rate,
        batch_size=batch_size,
        bound=bound,
        threshold=threshold,
        delta=delta,
        seed=seed,
    )
    if epsilon is not None and epsilon_per_epoch is not None:
        raise ValueError("give --epsilon (the whole training) or --epsilon-per-epoch (as the paper counts), not both.")
    settings = private(settings, mechanism, epsilon=epsilon, clip_norm=clip_norm, normalisation=private_normalisation)
    if epsilon_per_epoch is not None:
        privacy = collaboration.SparseVectorPrivacy(epsilon_per_epoch=epsilon_per_epoch)
        settings = replace(settings, privacy=privacy)
    get = collaboration.problem if private_normalisation is None else collaboration.raw_problem
    learned = get(dataset, model)
    with _bar("exchanges") as progress:
        result = collaboration.simulate(learned, settings, baselines=baselines, progress=progress)
    show(_facts(result), _lines(result, learned.name, settings), as_json=as_json)


def compare(
    dataset: _Dataset = "mnist",
    model: Model = "mlp",
    epsilons: Annotated[
        str, typer.Option(help="Honest ε of the whole training, separated by commas.")
    ] = "1,10,100,1000",
    participants: Participants = 30,
    upload: Upload = 0.1,
    delta: Delta = 1e-5,
    epochs: Epochs = 15,
    share: _Share = 0.01,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Compare the paper's uploads with better ones, at equal ε.

    \b
    Examples:
      tacit collaborate compare --epsilons 1,10,100
      tacit collaborate compare --epsilons 1000,100000 --upload 0.01 --json
    """
    from dataclasses import asdict

    from tacit import collaboration

    wanted = [number(text) for text in epsilons.split(",")]
    settings = collaboration.Settings(
        participants=participants, epochs=epochs, upload=upload, delta=delta, share=share, seed=seed
    )
    learned = collaboration.problem(dataset, model)
    with _bar("exchanges") as progress:
        rows = collaboration.compare(learned, settings, wanted, progress=progress)
    lines = [f"{'mechanism':14}  {'ε, whole training':>18}  {'protects a':12}  accuracy"]
    lines += [f"{row.mechanism:14}  {row.epsilon:18.2f}  {row.unit:12}  {row.test_accuracy:.4f}" for row in rows]
    show({"rows": [asdict(row) for row in rows]}, lines, as_json=as_json)


def _facts(result: Result) -> dict[str, Any]:
    whole = None if result.claim is None else result.claim.whole
    return {
        "test_accuracy": result.test_accuracy,
        "standalone_accuracy": result.standalone_accuracy,
        "centralised_accuracy": result.centralised_accuracy,
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "epsilon": None if whole is None else whole.epsilon,
        "seconds": result.seconds,
        "delta": None if whole is None else whole.delta,
        "unit": None if whole is None else whole.unit,
        "adjacency": None if whole is None else whole.adjacency,
        "secure_randomness": None if whole is None else whole.secure_randomness,
        "paper_epsilon_per_parameter": None if result.claim is None else result.claim.per_parameter,
        "history": result.history,
        "exchanges": result.exchanges,
        "protocol_milliseconds": 1000 * result.protocol_seconds / result.exchanges,
        "notes": list(result.notes),
    }


def _lines(result: Result, name: str, settings: Settings) -> list[str]:
    lines = [
        f"{name}: {settings.participants} participants, {settings.epochs} epochs, {settings.protocol}",
        f"test accuracy  {result.test_accuracy:.4f}",
    ]
    if result.centralised_accuracy is not None and result.standalone_accuracy is not None:
        lines.append(f"centralised    {result.centralised_accuracy:.4f}")
        lines.append(f"standalone     {result.standalone_accuracy:.4f}")
    lines.append("by epoch       " + " ".join(f"{value:.4f}" for value in result.history))
    lines.append(f"sent           {result.bytes_up / 1e6:,.1f} MB up, {result.bytes_down / 1e6:,.1f} MB down")
    lines.append(f"protocol       {1000 * result.protocol_seconds / result.exchanges:.2f} ms of CPU an exchange")
    lines.append(f"privacy        {'none: uploads carry no noise' if result.claim is None else result.claim}")
    return [*lines, *(f"note: {note}" for note in result.notes), f"took {result.seconds:.0f} s"]


@contextmanager
def _bar(unit: str) -> Iterator[Callable[[Progress], None]]:
    """A progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    with Bar(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("accuracy –", total=None)

        def report(state: Progress) -> None:
            shown = "–" if state.accuracy is None else f"{state.accuracy:.4f}"
            bar.update(task, completed=state.done, total=state.total, description=f"accuracy {shown}")

        yield report
