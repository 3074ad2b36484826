"""CPU nanoseconds per normal value: the secure source beside ``tensor.normal_()``, one thread, interleaved medians."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from tacit.randomness import SecureSource


def cpu_ns(call: Callable[[], object]) -> int:
    start = time.process_time_ns()
    call()
    return time.process_time_ns() - start


def measure(size: int, repeats: int) -> dict[str, float]:
    """Medians over ``repeats`` interleaved fills of ``size`` float32 values."""
    source, ours, theirs = SecureSource(), torch.zeros(size), torch.zeros(size)
    secure, plain = [], []
    for _ in range(repeats + 1):
        plain.append(cpu_ns(lambda: theirs.normal_()) / size)
        secure.append(cpu_ns(lambda: source.normal_(ours)) / size)
    ns, base = statistics.median(secure[1:]), statistics.median(plain[1:])
    return {"values": size, "secure_ns": ns, "normal_ns": base, "ratio": ns / base}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list and nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(1_000_000, 51), measure(25_000_000, 9)]
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'values':>12} {'secure ns':>10} {'normal_ ns':>11} {'ratio':>6}")
    for row in rows:
        print(f"{row['values']:>12,.0f} {row['secure_ns']:>10.2f} {row['normal_ns']:>11.2f} {row['ratio']:>6.2f}")


if __name__ == "__main__":
    main()
