"""The history of an Opacus accountant as ledger entries, so that an old claim can be checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.ledger.events import Step

_HOW = "write it with json.dump(privacy_engine.accountant.history, file)"


def history(path: Path) -> list[tuple[Step, int]]:
    """Read [[noise multiplier, sampling rate, steps], ...] from a JSON file, bare or under "history".

    Opacus charges each entry as so many Gaussian sums over Poisson samples; that is what is read here. Checkpoints are
    pickles and are not opened.
    """
    from tacit.accounting.draft import gradients
    from tacit.ledger.events import Poisson, Step

    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path} is not JSON; {_HOW}.") from error
    rows = data.get("history") if isinstance(data, dict) else data
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path} has no history of [noise multiplier, sampling rate, steps] rows; {_HOW}.")
    entries = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 3:
            raise ValueError(
                f"{path} has the row {str(row)[:60]}; it must be [noise multiplier, sampling rate, steps]."
            )
        noise, rate, steps = row
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"{path} has the row {str(row)[:60]}; its number of steps must be a whole number above 0.")
        if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 < noise < float("inf"):
            raise ValueError(f"{path} has the row {str(row)[:60]}; its noise multiplier must be a number above 0.")
        entries.append((Step(Poisson(rate=rate), (gradients(float(noise), "gaussian"),)), steps))
    return entries
