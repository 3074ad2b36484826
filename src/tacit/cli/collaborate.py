"""``tacit collaborate``: training together without sharing data."""

from __future__ import annotations

import typer

from tacit.cli.admission import admit, backup, keys, restore, revoke
from tacit.cli.averaging import average, contribute
from tacit.cli.calibration import calibrate
from tacit.cli.join import join
from tacit.cli.network import serve
from tacit.cli.simulation import compare, simulate

app = typer.Typer(
    name="collaborate",
    help="Train together without sharing data.\n\nDistributed selective SGD (Shokri & Shmatikov 2015).\n\n"
    "Example: tacit collaborate simulate --upload 0.1 --epochs 10",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (
    keys, serve, admit, revoke, join, backup, restore, average, contribute, simulate, compare, calibrate
):  # fmt: skip
    app.command()(command)
