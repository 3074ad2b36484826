"""``python -m tests.mutants [--write] [NAME …]``: which test catches which mutant."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from mutants.catalogue import MUTANTS  # noqa: E402
from mutants.running import CONTROL, Result, run, short  # noqa: E402

DOCUMENT = ROOT / "docs" / "assurance.md"
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"


def table(results: dict[str, Result], control: Result) -> str:
    caught = sum(result.caught for result in results.values())
    lines = [
        BEGIN,
        f"{datetime.date.today():%d %B %Y}: {caught} of {len(results)} mutants caught. The same tests on the library "
        f"as it is: {control.passed} passed, {len(control.failed)} failed.",
        "",
        "| mutant | the bug | caught by |",
        "|---|---|---|",
    ]
    for name, result in results.items():
        tests = list(dict.fromkeys(short(test) for test in result.failed))
        by = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests) or "**nothing**"
        note = MUTANTS[name].note
        lines.append(f"| `{name}` | {MUTANTS[name].bug}{f' (history {note})' if note else ''} | {by} |")
    return "\n".join([*lines, END])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table in docs/assurance.md")
    parser.add_argument("names", nargs="*", help="mutants; all of them if none is given")
    given = parser.parse_args()
    names = given.names or list(MUTANTS)
    found = run([*([CONTROL] if not given.names else []), *names])
    control = found.pop(CONTROL, Result(failed=(), passed=0))
    for name, result in found.items():
        print(f"{'caught' if result.caught else 'MISSED'}  {name}  {', '.join(map(short, result.failed))}")
        if result.trouble:
            print(result.trouble)
    for test in control.failed:
        print(f"FAILED without any mutant: {test}")
    if control.trouble:
        print(control.trouble)
    elif given.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN, 1)
        DOCUMENT.write_text(before + table(found, control) + rest.split(END, 1)[1], encoding="utf-8")
    return int(bool(control.failed) or bool(control.trouble) or not all(result.caught for result in found.values()))


if __name__ == "__main__":
    sys.exit(main())
