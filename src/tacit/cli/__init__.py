"""The ``tacit`` command. Commands import what they need when they run, so that ``tacit --help`` is quick."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tacit._version import __version__
from tacit.cli.account import account
from tacit.cli.audit import audit
from tacit.cli.budget import budget
from tacit.cli.collaborate import app as collaborate
from tacit.cli.data import app as data
from tacit.cli.describe import describe
from tacit.cli.export import export
from tacit.cli.plan import plan
from tacit.cli.planner import planner
from tacit.cli.predict import predict
from tacit.cli.report import report
from tacit.cli.reproduce import reproduce
from tacit.cli.train import train
from tacit.cli.tune import tune

app = typer.Typer(
    name="tacit",
    help="Train on data about people, and prove how little the result says about any one of them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(account)
app.command()(budget)
app.command()(plan)
app.command()(planner)
app.command()(describe)
app.command()(train)
app.command()(tune)
app.command()(predict)
app.command()(export)
app.command()(report)
app.command()(audit)
app.command()(reproduce)
app.add_typer(data)
app.add_typer(collaborate)


def _version(value: bool) -> None:
    if value:
        print(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks instead of one sentence.")] = False,
) -> None:
    pass


def _legible(text: str, most: int = 1000) -> str:
    """A complaint may quote a damaged file; its end, which says what to do, is kept."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def main(arguments: list[str] | None = None) -> None:
    """Run the command; an error that the user can repair is one sentence on standard error, with exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Before torch is imported: its threads sleep while they wait for one another. Waiting by running in circles takes
    # two to three times as long wherever another program wants the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # `join` says itself, in one sentence, why TLS fails
    try:
        code = app(args=arguments, prog_name="tacit", standalone_mode=False)
    except Exception as error:
        # Typer's complaints about options know how to print themselves.
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        known = isinstance(error, ValueError | OSError) or hasattr(error, "format_message")
        if not known or "--debug" in arguments:
            raise
        print(f"tacit: {_legible(text)}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
