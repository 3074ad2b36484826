"""Train models that others wrote, and say which the gradient engine takes, how exactly and at what cost.

    python benchmarks/zoo.py                            # every model, a table on stdout
    python benchmarks/zoo.py --only bert,mixtral        # models whose name contains one of these
    python benchmarks/zoo.py --family causal,peft --rows rows.jsonl
    python benchmarks/zoo.py --time --write --rows rows.jsonl   # with step ratios, into docs/zoo.md
    python benchmarks/zoo.py --ratios                   # step ratios of 34 models of all families, and their median

Each model is trained as its documentation shows, with its own loss, in a worker process; a segmentation fault or a hang
is one row of the table. `--rows` keeps every finished row; a run that was interrupted goes on there, if the commit is
the same; of rows of other commits it keeps what does not depend on Tacit, and step ratios unless `--time` measures them
anew. Every example's gradient norm and the clipped sum are compared with a loop over single
examples through ordinary autograd (1e-4 relative, float32). Needs the extra `zoo`, installed with `-c constraints.txt`.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from zoo_models import Entry, load, report

SAMPLE = (
    "gpt2", "llama", "qwen2", "opt", "gemma2", "llama-classifier",
    "bert-classify", "roberta-tag", "electra-classify", "deberta-v2-classify", "distilbert-mask", "t5",
    "bart", "hf-vit", "hf-swin", "wav2vec2-classify", "peft-lora", "peft-bert-lora",
    "peft-ia3", "timm-vit_tiny_patch16_224", "timm-resnet18", "timm-test_convnext", "timm-test_efficientnet",
    "tv-resnet-basic", "tv-mobilenet_v2", "lstm", "conv-net", "transformer-encoder", "binary", "gaussian",
    "factorisation", "weight-norm", "class-token", "masked-mean",
)  # fmt: skip
"""Models whose step ratios stand for the others'."""

DOCS = Path(__file__).parent.parent / "docs" / "zoo.md"


class Worker:
    """A worker process and the lines it answers with."""

    def __init__(self) -> None:
        paths = [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "zoo_models.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in paths if p)},
        )  # fmt: skip
        self.answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def ask(self, name: str, part: str, timeout: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{name} {part}\n")
            self.process.stdin.flush()
            answer = self.answers.get(timeout=timeout)
        except queue.Empty:
            self.stop()
            return {"outcome": "crash", "reason": f"no end within {timeout:.0f} s"}
        except BrokenPipeError:
            answer = ""
        if answer:
            return json.loads(answer)
        code = self.process.wait()
        return {
            "outcome": "crash",
            "reason": f"the process ended with code {code}" + (" (segmentation fault)" * (code == -11)),
        }

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Rows:
    """The rows that are finished, also in a file of JSON lines; in those of another commit Tacit is measured again."""

    def __init__(self, file: Path | None) -> None:
        found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=DOCS.parent, text=True,
                               capture_output=True, check=False)  # fmt: skip
        self.commit, self.file, self.lock = found.stdout.strip() or "unknown", file, threading.Lock()
        lines = file.read_text().splitlines() if file and file.exists() else []
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.found = {row["name"]: row for row in rows if row["commit"] == self.commit}
        self.earlier = {row["name"]: row for row in rows}
        for row in rows:
            for part in ("tacit", "time"):
                row.get(part, {}).setdefault("commit", row["commit"])

    def add(self, row: dict[str, Any]) -> None:
        with self.lock:
            self.found[row["name"]] = row | {"commit": self.commit}
            if self.file:
                with self.file.open("a") as stream:
                    stream.write(json.dumps(self.found[row["name"]]) + "\n")


def measured(
    worker: Worker, entry: Entry, parts: list[str], timeout: float, earlier: dict[str, Any], commit: str
) -> tuple[Worker, dict[str, Any]]:
    """Return a model's row, and the worker, which is another one if the first died."""
    row: dict[str, Any] = {"name": entry.name, "family": entry.family, "honest": entry.honest,
                           "token_mean": entry.token_mean}  # fmt: skip
    row |= {part: earlier[part] for part in ("entry", "opacus", "time") if part in earlier}
    for part in parts:
        if part in ("entry", "opacus") and part in row:
            continue
        if part == "time" and row.get("tacit", {}).get("outcome") not in ("fast", "isolated"):
            continue
        worker = worker if worker.alive else Worker()
        row[part] = worker.ask(entry.name, part, timeout) | {"commit": commit}
        if part == "entry" and row[part]["outcome"] == "crash":
            break
    return worker, row


def run(entries: list[Entry], parts: list[str], timeout: float, rows: Rows, workers: int) -> None:
    """Measure the models that have no row yet, in several processes."""
    missing = [entry for entry in entries if not set(parts) - {"time"} <= set(rows.found.get(entry.name, {}))]
    waiting: queue.SimpleQueue[Entry] = queue.SimpleQueue()
    for entry in missing:
        waiting.put(entry)

    def work() -> None:
        worker = Worker()
        try:
            while True:
                entry = waiting.get_nowait()
                earlier = rows.earlier.get(entry.name, {})
                worker, row = measured(worker, entry, parts, timeout, earlier, rows.commit)
                rows.add(row)
                print(
                    f"{len(missing) - waiting.qsize()}/{len(missing)} {report.line(row)}", file=sys.stderr, flush=True
                )
        except queue.Empty:
            worker.stop()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, len(missing)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--family", default="", help="families, separated by commas")
    parser.add_argument("--exact", action="store_true", help="--only gives whole names")
    parser.add_argument("--no-opacus", action="store_true")
    parser.add_argument("--public", action="store_true", help="also train two steps with tacit.make_private")
    parser.add_argument("--time", action="store_true", help="measure the step ratio too")
    parser.add_argument("--ratios", action="store_true", help="measure nothing but the step ratios of a sample")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one part of one model")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="JSON lines, one a model; what is there is kept")
    parser.add_argument("--workers", type=int, default=2, help="models measured at the same time")
    parser.add_argument("--write", action="store_true", help="write docs/zoo.md")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    wanted, families = [[w for w in text.split(",") if w] for text in (options.only, options.family)]
    entries = [
        e for e in load().values()
        if (not wanted or (e.name in wanted if options.exact else any(w in e.name for w in wanted)))
        and (not families or e.family in families)
    ]  # fmt: skip
    if options.list:
        print("\n".join(f"{e.family:12} {e.name}" for e in entries))
        print(Counter(e.family for e in entries), len(entries))
        return
    if options.ratios:
        worker = Worker()
        answers = {name: worker.ask(name, "time", options.timeout) for name in SAMPLE}
        worker.stop()
        found = {name: answer["ratio"] for name, answer in answers.items() if "ratio" in answer}
        print("\n".join(f"{name}: {answers[name]['reason']}" for name in SAMPLE if name not in found))
        print("\n".join(f"{name:28} {ratio:.2f}" for name, ratio in found.items()))
        print(f"median of {len(found)}: {statistics.median(found.values()):.2f}")
        return
    parts = (
        ["entry", "tacit"]
        + ["public"] * options.public
        + ["opacus"] * (not options.no_opacus)
        + ["time"] * options.time
    )
    kept = Rows(options.rows)
    run(entries, parts, options.timeout, kept, options.workers)
    rows = [kept.found[entry.name] for entry in entries]
    print(report.table(rows))
    if options.write:
        DOCS.write_text(report.page(rows))


if __name__ == "__main__":
    main()
