"""Keep the keys of correlated noise in a file beside the ledger, so that a run can resume in the middle of a block.

The first checkpoint of a run writes the file, readable by its owner only (mode 0600), and the last step removes it.
The file is not part of the checkpoint, because checkpoints hold no secrets: **a person with this file and the released
gradients has the exact gradients**. Without it (or with a ledger in memory) a resumed run begins a new block, which is
charged as another mechanism.

A resumed run continues with the block's groups and its past noise. Steps that the ledger has beyond the checkpoint
keep their places in the block, because they were released and charged. New noise has its own key (`tacit.block_keys`),
so no released noise is drawn again, whatever the ledger says.
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
    """Return the path of the keys if the ledger is a file."""
    return None if ledger.path is None else ledger.path.with_name(f"{ledger.path.name}.noise-keys")


def block_sampler(sampler: Sampler | UserSampler) -> CyclicSampler | None:
    """Return the run's cyclic sampler, or None for other samplings."""
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
    """Write the keys of the current block over those of an earlier block."""
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
    """Continue the block of a checkpoint if its keys are there; otherwise the sampler has begun a new block. ``step``
    is the run's next step, apart from the block's name: all steps of a block are equal. ``live`` are the keys that this
    process had before.
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
        log.warning(
            "the file with the noise keys is missing; the run begins a new block, charged as another mechanism."
        )
        return
    event = sampler.event()
    if any(each.queries != step.queries or not _alike(each.sampling, event) for each, _ in recorded):
        log.warning("the next steps differ from those of the block; the run begins a new block, charged on its own.")
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
