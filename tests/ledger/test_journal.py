"""The journal file: its size, its repair, and what happens to it under a live writer."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tacit.ledger import (
    GaussianSum,
    Header,
    LaplaceSum,
    Ledger,
    LedgerCorrupt,
    LedgerUnavailable,
    Poisson,
    Step,
    journal,
)
from tacit.ledger.contents import Contents

A, B, C = (
    Step(Poisson(rate=0.01), (GaussianSum(group="gradient", clip_norm=4.0, noise_std=noise),))
    for noise in (4.0, 8.0, 16.0)
)


def written(steps: list[Step]) -> bytes:
    """The journal of these steps, without the file."""
    data, contents = Contents.new(Header())
    image = bytearray(data)
    for step in steps:
        image += contents.add(step)
        at = contents.counter_at
        image[at : at + len(contents.counter())] = contents.counter()
    return bytes(image)


STEPS = [A, A, A, B, B, A, C]
DATA = written(STEPS)
LINES = DATA.splitlines(keepends=True)


def test_the_file_holds_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "ledger.jsonl"
    with Ledger.open(path) as ledger:
        for step in STEPS[:4]:
            ledger.record(step)
    with Ledger.open(path) as ledger:
        for step in STEPS[4:]:
            ledger.record(step)
    assert path.read_bytes() == DATA
    assert Ledger.load(path).entries == ledger.entries == ((A, 3), (B, 2), (A, 1), (C, 1))
    assert path.read_bytes() == DATA
    assert [json.loads(line)["kind"] for line in LINES] == ["header", "count", "count", *["step"] * 4]
    assert os.listdir(path.parent) == ["ledger.jsonl"]


def test_a_million_equal_steps_take_less_than_a_kilobyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_sync", lambda fd: None)
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path) as ledger:
        ledger.record(A)
        ledger._contents.runs[-1] = (A, 999_997)
        ledger._contents.steps = 999_997
        for _ in range(3):
            ledger.record(A)
    assert Ledger.load(path).entries == ((A, 1_000_000),)
    assert path.stat().st_size < 1024


# Torn writes, repaired by the next writer


def test_a_torn_last_line_is_cut_off_by_the_next_writer_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.jsonl"
    torn = DATA + LINES[4][:100]
    path.write_bytes(torn)
    assert len(Ledger.load(path)) == len(STEPS)
    assert path.read_bytes() == torn
    with caplog.at_level(logging.WARNING), Ledger.open(path) as ledger:
        assert path.read_bytes() == DATA
        assert "line 8 is torn and is left out" in caplog.text
        ledger.record(A)
    assert path.read_bytes() == written([*STEPS, A])


@pytest.mark.parametrize("cut", [40, 60, 140, 200])
@pytest.mark.parametrize("taken", [3, 4])
def test_a_torn_counter_counts_one_more_and_is_mended(tmp_path: Path, taken: int, cut: int) -> None:
    path = tmp_path / "ledger.jsonl"
    steps = [B, A, A, A][:taken]
    old, new = (written(steps[:count]).splitlines(keepends=True) for count in (taken - 1, taken))
    line = 1 + taken % 2
    old[line] = new[line][:cut] + old[line][cut:]
    path.write_bytes(b"".join(old))
    ledger = Ledger.load(path)
    assert ledger.entries == ((B, 1), (A, taken - 1))
    assert ledger.notes == (f"the counter on line {line + 1} is torn; it counts as one more step of the last run",)
    with Ledger.open(path) as ledger:
        assert path.read_bytes() == written(steps)
        ledger.record(C)
    assert Ledger.load(path).entries[-1] == (C, 1)
    assert Ledger.load(path).notes == ()


def test_a_failed_write_leaves_the_ledger_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path)
    ledger.record(A)
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if len(data) > 50:
            return real(fd, data[:50], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for step in (A, B):
        before = len(ledger)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            patch.setattr(journal, "_put", lambda fd, data, at: [full(fd, data, at), full(fd, data[50:90], at)])
            with pytest.raises(LedgerUnavailable, match="the disk is full; free some space") as caught:
                ledger.record(step)
            assert str(path) in str(caught.value)
            assert caught.value.errno == errno.ENOSPC
            assert before <= len(Ledger.load(path)) <= before + 1
        ledger.record(step)
        assert before + 1 <= len(ledger) <= before + 2
        assert Ledger.load(path).entries == ledger.entries
        assert Ledger.load(path).digest == ledger.digest


def test_an_interrupted_write_leaves_the_ledger_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path)
    ledger.record(A)
    for kind, real in (("_put", journal._put), ("_sync", journal._sync)):
        for calls in range(2):
            left = [calls]

            def interrupted(*args: Any, left: list[int] = left, real: Any = real) -> None:
                real(*args)
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt

            before = len(ledger)
            with monkeypatch.context() as patch:
                patch.setattr(journal, kind, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    ledger.record(B if ledger.entries[-1][0] == A else A)
            ledger.record(C)
            assert before + 1 <= len(ledger) <= before + 2
            assert Ledger.load(path).digest == ledger.digest
            ledger.record(A)


# Meddling under a live writer


def test_a_journal_deleted_replaced_or_resized_under_the_writer_stops_it(tmp_path: Path) -> None:
    def replace(path: Path) -> None:
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes())
        copy.rename(path)

    def older(path: Path) -> None:
        path.write_bytes(written([A]))

    meddlings = [
        Path.unlink,
        lambda path: path.rename(path.with_name("moved")),
        replace,
        older,
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
    ]
    for number, meddle in enumerate(meddlings):
        path = tmp_path / str(number) / "ledger.jsonl"
        with Ledger.open(path) as ledger:
            for step in (A, A, B):
                ledger.record(step)
            kept = path.read_bytes()
            meddle(path)
            for step in (A, B, B):
                with pytest.raises(LedgerUnavailable, match="Put the file back as it was, or stop this run"):
                    ledger.record(step)
            assert len(ledger) == 3
        assert len(kept) == len(written([A, A, B]))


def test_meddling_during_the_write_is_seen_before_the_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path) as ledger:
        ledger.record(A)
        old = path.read_bytes()
        ledger.record(A)
        ledger.record(A)
        real = journal._sync

        def sync(fd: int) -> None:
            real(fd)
            path.unlink()

        with monkeypatch.context() as patch:
            patch.setattr(journal, "_sync", sync)
            with pytest.raises(LedgerUnavailable, match="deleted"):
                ledger.record(A)
        with pytest.raises(LedgerUnavailable, match="deleted"):
            ledger.record(A)
        path.write_bytes(old)
        with pytest.raises(LedgerUnavailable, match="deleted, moved or replaced"):
            ledger.record(A)


def test_an_older_copy_put_in_place_after_a_failed_write_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path) as ledger:
        for _ in range(5):
            ledger.record(A)
        with monkeypatch.context() as patch:
            patch.setattr(journal, "_sync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
            with pytest.raises(LedgerUnavailable, match="I/O error"):
                ledger.record(A)
        path.write_bytes(written([A, A]))
        with pytest.raises(LedgerUnavailable, match="says 2 steps, not 5"):
            ledger.record(A)


def test_paths_that_cannot_hold_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("hello\n")
    for call in (Ledger.open, Ledger.load):
        with pytest.raises(LedgerUnavailable, match="it is a directory"):
            call(tmp_path)
        with pytest.raises(LedgerCorrupt, match="file, line 1"):
            call(file)
    with pytest.raises(LedgerUnavailable, match="there is no such file"):
        Ledger.load(tmp_path / "absent")
    with pytest.raises(LedgerUnavailable, match="a part of the path is a file"):
        Ledger.open(file / "ledger.jsonl")
    with pytest.raises(LedgerUnavailable, match="not a regular file"):
        Ledger.load("/dev/null")
    assert file.read_text() == "hello\n"
    for code, words in ((errno.EACCES, "permission is denied"), (errno.EROFS, "read-only")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", lambda *args, code=code: (_ for _ in ()).throw(OSError(code, "x")))
            with pytest.raises(LedgerUnavailable, match=words):
                Ledger.open(tmp_path / "new")


def test_other_files_beside_a_new_ledger_are_left_alone(tmp_path: Path) -> None:
    """A draft used to be written to name + ".new", which may be somebody's ledger."""
    with Ledger.open(tmp_path / "run.new") as other:
        other.record(A)
    with Ledger.open(tmp_path / "run") as ledger:
        ledger.record(B)
    assert len(Ledger.load(tmp_path / "run.new")) == 1
    assert sorted(os.listdir(tmp_path)) == ["run", "run.new"]


def test_a_link_to_nowhere_is_not_a_new_ledger(tmp_path: Path) -> None:
    """The disk with the real ledger may only be missing for the moment."""
    (tmp_path / "ledger").symlink_to(tmp_path / "away" / "ledger")
    with pytest.raises(LedgerUnavailable):
        Ledger.open(tmp_path / "ledger")
    assert (tmp_path / "ledger").is_symlink()


# Two at once


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    code = "import sys; from tacit.ledger import Ledger; print(len(getattr(Ledger, sys.argv[1])(sys.argv[2])))"
    with Ledger.open(path) as ledger:
        ledger.record(A)
        with pytest.raises(LedgerUnavailable, match="already open for writing"):
            Ledger.open(path)
        second, reader = (
            subprocess.run([sys.executable, "-c", code, verb, str(path)], capture_output=True, text=True)
            for verb in ("open", "load")
        )
        assert "already open for writing" in second.stderr
        assert reader.stdout == "1\n"
        ledger.record(B)
    with Ledger.open(path) as ledger:
        assert len(ledger) == 2


def test_the_lock_does_not_outlive_the_writer_in_a_forked_child(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.jsonl")
    ready, is_ready = os.pipe()
    stop, do_stop = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(is_ready, b"x")
        os.read(stop, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        ledger.close()
        Ledger.open(tmp_path / "ledger.jsonl").close()
    finally:
        os.write(do_stop, b"x")
        os.waitpid(child, 0)


def test_a_reader_beside_a_busy_writer_never_sees_less_or_damage(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    done = threading.Event()
    released = [0]

    other = Step(Poisson(rate=0.5), (LaplaceSum(group="g", clip_norm=1, scale=3, dimension=1),))

    def work() -> None:
        try:
            with Ledger.open(path) as ledger:
                for number in range(400):
                    ledger.record((A, A, B, other)[number % 4])
                    released[0] += 1
        finally:
            done.set()

    Ledger.open(path).close()
    thread = threading.Thread(target=work)
    thread.start()
    reads = 0
    while not done.is_set():
        before = released[0]
        found = len(Ledger.load(path))
        assert before <= found <= released[0] + 1
        reads += 1
    thread.join()
    assert reads > 5
    assert len(Ledger.load(path)) == 400
