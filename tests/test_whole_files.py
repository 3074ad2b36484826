"""`tacit._files`: a file is the old one or the new one, whatever happens in between."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tacit._files import sync, write_whole


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_no_draft(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "facts.json"
    write_whole(path, b"old")

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="no space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["facts.json"]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: (done.append(name), real(*args)))
    write_whole(tmp_path / "facts.json", b"new")
    assert done == ["fsync", "replace"]


def test_the_mode_is_that_of_the_draft_already(tmp_path: Path) -> None:
    write_whole(tmp_path / "secret", b"key", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_folders_that_cannot_be_synced_are_accepted_and_broken_disks_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(tmp_path)
    code = errno.EINVAL

    def fails(handle: int) -> None:
        raise OSError(code, "it does not work")

    monkeypatch.setattr(os, "fsync", fails)
    sync(tmp_path)
    code = errno.EIO
    with pytest.raises(OSError, match="it does not work"):
        sync(tmp_path)
