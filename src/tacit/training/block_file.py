"""The keys of correlated noise in a file beside the ledger, so that a run can be resumed in the middle of a block.

The file is written with the first checkpoint and not before, for its owner only (mode 0600), and removed when the run
has taken its last step. It is not part of the checkpoint, which holds nothing that must be kept secret: **a person
with this file and the released gradients has the exact gradients**. Without it (or with a ledger in memory) a resumed
run begins a new block, which is charged as another mechanism.

What is resumed: the block's groups, and its past noise. Steps that the ledger has beyond the checkpoint keep their
places in the block: they were released, and are charged. The noise to come has a key of its own (`tacit.block_keys`),
so nothing that was released is drawn again, whatever the ledger says.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from tacit._files import sync, write_whole
from tacit.block_keys import BlockKeys
from tacit.ledger import CyclicPoisson, Ledger, Step
from tacit.sampling import CyclicSampler, Sampler, UserSampler
from tacit.training.open_run import OpenRun

log = logging.getLogger("tacit")


def key_file(ledger: Ledger) -> Path | None:
    """Return where the keys are, for a ledger that is a file."""
    return None if ledger.path is None else ledger.path.with_name(f"{ledger.path.name}.noise-keys")


def block_sampler(sampler: Sampler | UserSampler) -> CyclicSampler | None:
    """Return what draws the groups that take turns, if that is how records are sampled."""
    base = sampler.base if isinstance(sampler, UserSampler) else sampler
    return base if isinstance(base, CyclicSampler) else None


def keep_keys(run: OpenRun) -> None:
    """Write the keys that resuming the run needs; remove them if it has taken its last step."""
    sampler = block_sampler(run.sampler)
    if sampler is not None and run.step < run.steps:
        write_keys(sampler, run.ledger)
    elif sampler is not None:
        remove_keys(run.ledger)


def write_keys(sampler: CyclicSampler, ledger: Ledger) -> None:
    """Write the keys of the block at hand, in the place of those of an earlier one."""
    path = key_file(ledger)
    if path is not None:
        write_whole(path, json.dumps(sampler.keys.written()).encode(), mode=0o600)
        sync(path.parent)


def remove_keys(ledger: Ledger) -> None:
    """Remove the file: no later step needs the noise."""
    path = key_file(ledger)
    if path is not None:
        path.unlink(missing_ok=True)


def resume_block(sampler: CyclicSampler, ledger: Ledger, state: dict[str, Any], step: Step, live: BlockKeys) -> None:
    """Continue the block that a checkpoint was written in, if its keys are there; else the sampler has begun a new one.

    ``step`` is what the run would record next, but for the block's name: a block consists of equal steps. ``live`` are
    the keys that this process had before.
    """
    name, path = state.get("block"), key_file(ledger)
    keys = live if live.name == name else None
    if keys is None and path is not None and path.exists():
        found = BlockKeys.read(_read(path), live.source)
        keys = found if found.name == name else None
    recorded = [
        (each, count)
        for each, count in ledger.entries
        if isinstance(each.sampling, CyclicPoisson) and each.sampling.block == name
    ]
    if keys is None:
        log.warning("the keys of the block's noise are not there; a new block begins, charged as another mechanism.")
        return
    event = sampler.event()
    if any(each.queries != step.queries or not _alike(each.sampling, event) for each, _ in recorded):
        log.warning("the steps to come differ from those of the block; a new block begins, charged on its own.")
        return
    sampler.go_on(keys, sum(count for _, count in recorded))
    if path is not None and path.exists():
        write_keys(sampler, ledger)


def _alike(sampling: Any, event: CyclicPoisson) -> bool:
    return (sampling.groups, sampling.rate, sampling.records, sampling.unit) == (
        event.groups,
        event.rate,
        event.records,
        event.unit,
    )


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} does not hold the keys of a block; remove it to begin a new one.") from error
