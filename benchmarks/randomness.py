"""CPU nanoseconds per value, one thread, interleaved medians: the secure source beside PyTorch's own generator.

Filling a tensor with normal values, against ``tensor.normal_()``; and releasing a sum (secure noise added, the result
rounded to its grid), against ``total.add_(noise.normal_())``. The same for discrete Gaussian noise, drawn exactly:
whole numbers of deviation σ alone, and the release of a sum rounded to a lattice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tacit.mechanisms import SumQuery
from tacit.mechanisms.discrete import draw
from tacit.mechanisms.lattice import add_noise_
from tacit.mechanisms.noise import add_gaussian_
from tacit.randomness import SecureSource

Row = dict[str, Any]


def cpu_ns(call: Callable[[], object]) -> int:
    start = time.process_time_ns()
    call()
    return time.process_time_ns() - start


def compare(what: str, size: int, repeats: int, ours: Callable[[], object], theirs: Callable[[], object]) -> Row:
    """Medians over ``repeats`` interleaved calls, after one of each to warm up."""
    secure, plain = [], []
    for _ in range(repeats + 1):
        plain.append(cpu_ns(theirs) / size)
        secure.append(cpu_ns(ours) / size)
    ns, base = statistics.median(secure[1:]), statistics.median(plain[1:])
    return {"what": what, "values": size, "secure_ns": ns, "per_second": 1e9 / ns, "torch_ns": base, "ratio": ns / base}


def measure(size: int, repeats: int) -> list[Row]:
    """All comparisons on ``size`` float32 values."""
    source, values, other, noise = SecureSource(), torch.zeros(size), torch.zeros(size), torch.zeros(size)
    query = SumQuery(group="sum", clip_norm=1.0, noise_std=1.0, noise="discrete", dimension=size).event()
    return [
        *(
            compare(f"σ = {name}", size, repeats, lambda s=sigma: draw(s, size, source), lambda: other.normal_())
            for name, sigma in (("1", 1.0), ("1000", 1000.0), ("2^24", 2.0**24))
        ),
        compare("fill", size, repeats, lambda: source.normal_(values), lambda: other.normal_()),
        compare(
            "release",
            size,
            repeats,
            lambda: add_gaussian_([(values, 1.0)], source),
            lambda: other.add_(noise.normal_()),
        ),
        compare(
            "lattice",
            size,
            repeats,
            lambda: add_noise_([(values, query, 1.0)], source),
            lambda: other.add_(noise.normal_()),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list and nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [*measure(1_000_000, 21), *measure(25_000_000, 3)]
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'what':<9} {'values':>12} {'secure ns':>10} {'a second':>12} {'torch ns':>9} {'ratio':>6}")
    for row in rows:
        print(
            "{what:<9} {values:>12,} {secure_ns:>10.2f} {per_second:>12,.0f} {torch_ns:>9.2f} {ratio:>6.2f}".format(
                **row
            )
        )


if __name__ == "__main__":
    main()
