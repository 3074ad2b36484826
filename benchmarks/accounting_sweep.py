"""CPU seconds of plain Poisson queries at typical parameters; needs no peers.

    python benchmarks/accounting_sweep.py

36 points (q, σ, T) for each relation and δ: the slowest ones, the median, and how far the bounds are apart.
"""

import itertools
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tacit.accounting.composition import Composition, Gaussian, Policy, Term
from tacit.accounting.pld import Pld
from tacit.ledger.events import Adjacency

GRID = list(itertools.product((1e-4, 1e-3, 0.01, 0.1), (0.5, 0.7, 8.0), (1_000, 10_000, 100_000)))
SLOWEST = 3


def seconds(adjacency: Adjacency, rate: float, noise: float, steps: int, delta: float) -> tuple[float, float]:
    """Return the CPU seconds of a query, and how far its bounds on ε are apart, relatively."""
    composition = Composition(adjacency, ((Term(Gaussian(noise), Policy.POISSON, rate), steps),))
    start = time.process_time()
    found = Pld().epsilon(composition, delta)
    used = time.process_time() - start
    return used, 1 - (found.lower or 0.0) / found.upper


def main() -> None:
    print("| neighbours | δ | CPU s, median | slowest: CPU s (q, σ, T) | bounds apart, at most |")
    print("|---|---|---|---|---|")
    for adjacency, delta in itertools.product(Adjacency, (1e-5, 1e-8)):
        found = {point: seconds(adjacency, *point, delta) for point in GRID}
        slow = sorted(found, key=lambda point: found[point][0], reverse=True)[:SLOWEST]
        shown = ", ".join(f"{found[p][0]:.2f} ({p[0]:g}, {p[1]:g}, {p[2]:,})" for p in slow)
        median = statistics.median(used for used, _ in found.values())
        print(
            f"| {adjacency.value} | {delta:g} | {median:.3f} | {shown} | {max(gap for _, gap in found.values()):.1e} |"
        )


if __name__ == "__main__":
    main()
