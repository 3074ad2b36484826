"""Disks that fill up, directories that cannot be written, journals that vanish: training stops before it releases."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.ledger import LedgerUnavailable, journal
from tacit.mechanisms import groups
from tacit.training import PrivateRun

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(60) % 3


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every noisy sum, as it is released."""
    seen: list[Tensor] = []
    real = groups.add_noise_

    def spy(sums: Any, source: Any) -> None:
        real(sums, source)
        seen.append(torch.cat([total.flatten().clone() for total, *_ in sums]))

    monkeypatch.setattr(groups, "add_noise_", spy)
    return seen


def start(path: Path, **settings: Any) -> PrivateRun:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen: dict[str, Any] = {"clipping": tacit.Adaptive(initial=0.5), "noise_multiplier": 1.0, "steps": 20, **settings}
    return tacit.make_private(model, optimizer, TensorDataset(X, Y), lot_size=12, ledger=path, **chosen)


def train(run: PrivateRun, at: int, trouble: Callable[[], None]) -> None:
    for x, y in run.batches():
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        if run.step == at:
            trouble()


TROUBLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "deleted": (lambda path: path.unlink(), "deleted"),
    "moved": (lambda path: path.rename(path.with_name("elsewhere")), "deleted, moved"),
    "emptied": (lambda path: os.truncate(path, 0), "bytes"),
    "cut short": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes"),
    "grown": (lambda path: path.open("ab").write(b"x"), "bytes"),
    "replaced by a copy": (lambda path: replaced(path), "replaced"),
}


def replaced(path: Path) -> None:
    other = path.with_name("copy")
    other.write_bytes(path.read_bytes())
    other.rename(path)


@pytest.mark.parametrize("name", TROUBLES)
def test_a_journal_that_is_lost_stops_the_run(name: str, tmp_path: Path, releases: list[Tensor]) -> None:
    harm, words = TROUBLES[name]
    path = tmp_path / "ledger.jsonl"
    run = start(path)
    with pytest.raises(LedgerUnavailable, match=words):
        train(run, 5, lambda: harm(path))
    assert run.step == len(releases) == 5
    weights = run.model.weight.detach().clone()
    with pytest.raises(LedgerUnavailable):  # and it stays stopped
        next(run.lot())
    assert len(releases) == 5 and torch.equal(weights, run.model.weight)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("place", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_that_fails_stops_the_run_and_lets_it_go_on_later(
    code: int, place: str, after: int, tmp_path: Path, releases: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(os, place):
        pytest.skip(f"this system has no os.{place}")
    run = start(tmp_path / "ledger.jsonl")
    broken = pytest.MonkeyPatch()

    def fill() -> None:
        real, left = getattr(os, place), after

        def fail(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(code, os.strerror(code))
            return real(*arguments)

        broken.setattr(journal.os, place, fail)

    try:
        with pytest.raises(LedgerUnavailable, match="Cannot write"):
            train(run, 4, fill)
        assert run.step == len(releases) == 4
        with pytest.raises(LedgerUnavailable):
            next(run.lot())
    finally:
        broken.undo()
    assert len(releases) == 4
    train(run, -1, lambda: None)  # with room again the run goes on; what was half written may be charged, never less
    assert run.step == len(releases) == 20
    assert 20 <= len(run.ledger) <= 22
    assert len(tacit.Ledger.load(tmp_path / "ledger.jsonl")) == len(run.ledger)


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, releases: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(journal.os, "open", refuse)
    with pytest.raises(LedgerUnavailable, match="read-only"):
        start(tmp_path / "ledger.jsonl")
    assert not releases and not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_directory_without_permission(tmp_path: Path, releases: list[Tensor]) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(LedgerUnavailable, match="permission"):
            start(tmp_path / "ledger.jsonl")
    finally:
        tmp_path.chmod(0o700)
    assert not releases


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(
    tmp_path: Path, releases: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path / "ledger.jsonl", clipping=tacit.Flat(1.0))
    train(run, 5, lambda: run.save(tmp_path / "point"))
    from tacit.training import checkpoint

    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="space"):
        run.save(tmp_path / "point")
    run.close()
    run.ledger.close()
    again = start(tmp_path / "ledger.jsonl", clipping=tacit.Flat(1.0))
    again.load(tmp_path / "point")
    assert again.step == 5
