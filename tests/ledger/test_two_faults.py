"""Two faults at once: a journal is read fully, over-reported or refused, never read as fewer steps than were taken."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tacit.accounting import guarantee
from tacit.ledger import GaussianSum, Header, Ledger, LedgerCorrupt, Poisson, Step
from tacit.ledger.contents import WIDTH, Contents
from tacit.ledger.reading import read

A, B, C = (
    Step(Poisson(rate=0.01), (GaussianSum(group="gradient", clip_norm=4.0, noise_std=noise),))
    for noise in (4.0, 8.0, 16.0)
)


def states(steps: list[Step]) -> list[bytes]:
    """The journal of these steps, as it was after every one of them."""
    data, contents = Contents.new(Header())
    images = [data]
    for step in steps:
        image = bytearray(images[-1] + contents.add(step))
        at = contents.counter_at
        image[at : at + WIDTH] = contents.counter()
        images.append(bytes(image))
    return images


def damages(line: bytes) -> Iterator[tuple[str, bytes]]:
    """A counter line damaged: a bit, a part, all of it."""
    for place in range(0, len(line), 5):
        for mask in (0x01, 0x08):
            yield f"bit at {place}", line[:place] + bytes([line[place] ^ mask]) + line[place + 1 :]
    for cut in range(0, len(line), 24):
        for fill in (b"\0", b"0", b" ", b"\xff", b"x"):
            yield f"{fill!r} from {cut}", line[:cut] + fill * (len(line) - cut)
            yield f"{fill!r} up to {cut}", fill * cut + line[cut:]
    yield "turned round", line[::-1]


def ends(body: list[bytes]) -> Iterator[tuple[str, bytes]]:
    """The lines of the steps, with faults in the last ones."""
    whole = b"".join(body)
    yield "whole", whole
    for gone in range(1, len(body) + 1):
        yield f"{gone} lines cut off", b"".join(body[:-gone])
    for size in range(len(whole) - 1, max(0, len(whole) - 2 * len(body[-1])), -29):
        yield f"cut at {size}", whole[:size]
        yield f"zeros from {size}", whole[:size] + b"\0" * (len(whole) - size)
    for place in range(0, len(body[-1]), 40):
        last = bytearray(body[-1])
        last[place] ^= 0x01
        yield f"bit at {place} of the last line", b"".join(body[:-1]) + bytes(last)
    yield "last line twice", whole + body[-1]
    yield "torn line at the end", whole + body[-1][:60]
    yield "blank line at the end", whole + b"\n"
    if len(body) > 1:
        yield "last line before the end gone", b"".join([*body[:-2], body[-1]])
        yield "last two lines in the other order", b"".join([*body[:-2], body[-1], body[-2]])


SCRIPTS = {
    "one": [A],
    "two equal": [A, A],
    "two": [A, B],
    "a new kind last": [A, A, A, B],
    "a new kind last, even": [A, A, A, A, B],
    "a run last": [A, B, B],
    "new kinds": [A, B, C],
    "a run begun": [A, B, C, C],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_two_small_faults_hide_a_step(name: str) -> None:
    steps = SCRIPTS[name]
    images = states(steps)
    header, *counters_and_body = images[-1].splitlines(keepends=True)
    counters, body = counters_and_body[:2], counters_and_body[2:]
    newest = len(steps) % 2
    pairs: list[tuple[str, list[bytes], bytes]] = []
    for slot in range(2):
        for fault, line in damages(counters[slot]):
            damaged = [line if slot == each else counters[each] for each in range(2)]
            pairs += [(f"counter {slot}, {fault}; {end}", damaged, lines) for end, lines in ends(body)]
    sparse = [list(damages(counter))[::7] for counter in counters]
    for (first, even), (second, odd) in product(*sparse):
        pairs.append((f"counters, {first}; {second}", [even, odd], b"".join(body)))
    # Counters of other moments in the place of these. Only the newest put back by two steps makes a shorter history.
    old = [image.splitlines(keepends=True)[1:3] for image in images]
    for moment, slot in product(range(len(images)), range(2)):
        rolled_back = slot == newest and old[moment][slot] == old[-2][slot]
        if not rolled_back:
            put = [old[moment][slot] if slot == each else counters[each] for each in range(2)]
            pairs += [(f"counter {slot} of step {moment}; {end}", put, lines) for end, lines in ends(body)]
    assert len(pairs) > 2000
    read_through = 0
    for fault, pair, lines in pairs:
        try:
            found = read(b"".join([header, *pair]) + lines, "j")
        except LedgerCorrupt:
            continue
        taken = [step for step, count in found.runs for _ in range(count)]
        assert taken in (steps, [*steps, steps[-1]]), fault
        read_through += 1
    assert read_through < len(pairs) / 50  # torn lines at the end of a whole journal, and little else


def test_a_damaged_counter_cannot_hide_the_release_on_the_last_line(tmp_path: Path) -> None:
    cheap = Step(Poisson(rate=0.001), (GaussianSum(group="gradient", clip_norm=1.0, noise_std=20.0),))
    dear = Step(Poisson(rate=0.9), (GaussianSum(group="answer", clip_norm=1.0, noise_std=0.1),))
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path) as ledger:
        for step in [*[cheap] * 100, dear]:
            ledger.record(step)
    spent = guarantee(list(ledger.entries), ledger.header, delta=1e-5).epsilon
    assert spent > 50
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    for damaged in (lines[2][:40].ljust(WIDTH - 1) + b"\n", b"\0" * WIDTH, lines[2].replace(b"101", b"100")):
        path.write_bytes(b"".join([*lines[:2], damaged, *lines[3:-1]]))
        for call in (Ledger.load, Ledger.open):
            with pytest.raises(LedgerCorrupt, match=r"line 3: the counter is damaged.* a line .* may be missing"):
                call(path)


@pytest.mark.parametrize("length", [1, 3, 4, 5])
def test_a_receipt_detects_every_rollback(length: int) -> None:
    """A file put back to an older copy is a good file; whoever kept the digest of the newer one can tell."""
    steps = [A, A, B, B, C][:length]
    images = states(steps)
    digests = [read(image, "j").digest for image in images]
    assert len(set(digests)) == len(digests)
    for now, image in enumerate(images):
        contents = read(image, "j")
        for moment, digest in enumerate(digests):
            assert contents.steps_at(digest) == (moment if moment <= now else None)
    assert read(images[-1], "j").steps_at("0" * 64) is None


def test_a_receipt_is_good_for_the_ledger_that_went_on(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.jsonl") as ledger:
        ledger.record(A)
        receipt = ledger.digest
        other = Ledger()
        for step in (A, A, B):
            ledger.record(step)
            other.record(step)
        assert ledger.steps_at(receipt) == other.steps_at(receipt) == 1
        other.record(C)
    assert Ledger.load(tmp_path / "ledger.jsonl").steps_at(other.digest) is None
