"""Accountants compared: time, tightness and failures, ours and the peers', in one run.

    python benchmarks/accounting.py            prints the tables
    python benchmarks/accounting.py --write    and puts them into docs/benchmarks.md
    python benchmarks/accounting.py --quick    a few points only, to see that it works

Every query runs in a process of its own with a memory limit and a limit on CPU seconds, which are measured inside it:
imports and other users of the machine do not count. The truth of a point is the middle of our certified interval where
that is narrower than 0.2 %, else the point is left out of the tightness columns. The two slowest peers are asked at
every fourth point.
"""

import argparse
import datetime
import importlib.metadata
import itertools
import logging
import math
import multiprocessing
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import dp_accounting  # noqa: E402
import numpy as np  # noqa: E402
from dp_accounting.pld import PLDAccountant  # noqa: E402
from dp_accounting.rdp import RdpAccountant  # noqa: E402
from opacus.accountants import PRVAccountant  # noqa: E402
from opacus.accountants import RDPAccountant as OpacusRdp  # noqa: E402
from opacus.accountants.utils import get_noise_multiplier  # noqa: E402

from tacit.accounting import plan  # noqa: E402
from tacit.accounting.composition import Composition, Gaussian, Policy, Term  # noqa: E402
from tacit.accounting.moments import Moments  # noqa: E402
from tacit.accounting.pld import Pld  # noqa: E402
from tacit.accounting.rdp import Rdp  # noqa: E402
from tacit.ledger.events import Adjacency  # noqa: E402

try:
    import prv_accountant
except ImportError:
    prv_accountant = None

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- accounting:begin -->", "<!-- accounting:end -->"
GRID = list(
    itertools.product((1e-4, 1e-3, 0.01, 0.1, 0.5), (0.7, 1.0, 4.0, 20.0), (100, 10_000, 100_000), (1e-8, 1e-5))
)
QUICK = GRID[::23]
SPARSE = {"opacus PRV": 4, "prv-accountant": 4}


def composition(rate, noise, count):
    policy = Policy.POISSON if rate < 1 else Policy.ALWAYS
    return Composition(Adjacency.ADD_REMOVE, ((Term(Gaussian(noise), policy, rate), count),))


def ours(accountant):
    def query(rate, noise, count, delta):
        found = accountant.epsilon(composition(rate, noise, count), delta)
        return found.upper, found.lower

    return query


def dp(kind):
    def query(rate, noise, count, delta):
        accountant = kind()
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(event, count)
        return accountant.get_epsilon(delta), None

    return query


def opacus(kind):
    def query(rate, noise, count, delta):
        accountant = kind()
        accountant.history = [(noise, rate, count)]
        return float(accountant.get_epsilon(delta)), None

    return query


def prv(rate, noise, count, delta):
    mechanism = prv_accountant.PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    accountant = prv_accountant.PRVAccountant(
        prvs=[mechanism], max_self_compositions=[count], eps_error=0.01, delta_error=delta / 1000
    )
    return float(accountant.compute_epsilon(delta=delta, num_self_compositions=[count])[2]), None


QUERIES = {
    "tacit pld": ours(Pld()),
    "tacit rdp": ours(Rdp()),
    "tacit moments": ours(Moments()),
    "dp-accounting PLD": dp(PLDAccountant),
    "dp-accounting RDP": dp(RdpAccountant),
    "opacus PRV": opacus(PRVAccountant),
    "opacus RDP": opacus(OpacusRdp),
}
if prv_accountant is not None:
    QUERIES["prv-accountant"] = prv


def apart(task, seconds, memory=3 * 2**30):
    """(answer, CPU seconds) of ``task()`` in a child process, or (reason, None)."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def child():
        resource.setrlimit(resource.RLIMIT_AS, (memory + 2 * 2**30, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))
        sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        start = time.process_time()
        try:
            there.send((task(), time.process_time() - start))
        except BaseException as error:
            there.send((type(error).__name__, None))

    process = context.Process(target=child)
    process.start()
    there.close()
    try:
        if not here.poll(30 * seconds):
            return "time-out", None
        return here.recv()
    except EOFError:
        process.join()
        return "time-out" if process.exitcode == -signal.SIGXCPU else "killed", None
    finally:
        process.kill()
        process.join()


def queries(grid, seconds):
    """Rows of the table of single queries."""
    results = {name: {} for name in QUERIES}
    for number, point in enumerate(grid):
        print(f"\r{number}/{len(grid)} points", end="", file=sys.stderr, flush=True)
        for name, query in QUERIES.items():
            if number % SPARSE.get(name, 1):
                continue
            results[name][point] = apart(lambda query=query, point=point: query(*point), seconds)
    print(file=sys.stderr)
    truth = {}
    for point, (answer, used) in results["tacit pld"].items():
        if used is not None and answer[1] and answer[0] - answer[1] <= 2e-3 * answer[0]:
            truth[point] = (answer[0] + answer[1]) / 2
    table = ["| accountant | CPU s, median / p90 | above the truth, ε 1–10 | ε 0.1–1 | below the truth | failures |"]
    table.append("|---|---|---|---|---|---|")
    for name, answers in results.items():
        good = {p: (a[0], used) for p, (a, used) in answers.items() if used is not None and math.isfinite(a[0])}
        times = sorted(used for _, used in good.values())
        spread = {}
        for low, high in ((1, 10), (0.1, 1)):
            excess = [good[p][0] / t - 1 for p, t in truth.items() if p in good and low <= t < high]
            spread[low] = (
                f"{100 * statistics.median(excess):+.2f} % (worst {100 * max(excess):+.1f} %)" if excess else "–"
            )
        below = sum(good[p][0] < t * (1 - 2e-3) for p, t in truth.items() if p in good)
        bad = [a if used is None else "not finite" for p, (a, used) in answers.items() if p not in good]
        counts = ", ".join(f"{bad.count(kind)} {kind}" for kind in sorted(set(bad))) or "none"
        timing = f"{statistics.median(times):.3f} / {np.quantile(times, 0.9):.3f}" if times else "–"
        known = sum(p in answers for p in truth)
        asked = f" ({len(answers)} points)" if len(answers) < len(grid) else ""
        table.append(f"| {name}{asked} | {timing} | {spread[1]} | {spread[0.1]} | {below} of {known} | {counts} |")
    head = (
        f"{len(grid)} queries (q, σ, T, δ), {len(truth)} of them with a certified truth; "
        f"at most {seconds:g} CPU seconds each.\n"
    )
    return [head, *table, "", _ratios(results)]


def _ratios(results, peer="dp-accounting PLD"):
    """How many times as long the peer takes, point by point where both answer."""
    pairs = [(results[peer][p], results["tacit pld"][p]) for p in results["tacit pld"]]
    times = [(theirs[1], ours[1]) for theirs, ours in pairs if theirs[1] is not None and ours[1] is not None]
    each = [theirs / ours for theirs, ours in times]
    ours, theirs = [t for _, t in times], [t for t, _ in times]
    return (
        f"{peer} takes {statistics.median(theirs) / statistics.median(ours):.0f} times as long as tacit pld in the "
        f"median and {np.quantile(theirs, 0.9) / np.quantile(ours, 0.9):.0f} times at p90; point by point the median "
        f"ratio is {statistics.median(each):.0f}, and tacit is slower at {sum(r < 1 for r in each)} of {len(each)}."
    )


def _calibrations(records, lot, epochs, epsilon, delta):
    rate, count = lot / records, math.ceil(epochs * records / lot)

    def ours_by(accountant):
        return lambda: (
            plan(
                records=records, lot_size=lot, epochs=epochs, epsilon=epsilon, delta=delta, accountant=accountant
            ).noise_multiplier
        )

    def dp_by(kind):
        def event(noise):
            inner = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
            return dp_accounting.SelfComposedDpEvent(inner, count)

        return lambda: dp_accounting.calibrate_dp_mechanism(
            kind, event, epsilon, delta, dp_accounting.LowerEndpointAndGuess(0.3, 1.0), tol=1e-3
        )

    def opacus_by(kind):
        return lambda: get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=count, accountant=kind
        )

    return {
        "tacit pld": ours_by("pld"),
        "tacit rdp": ours_by("rdp"),
        "tacit moments": ours_by("moments"),
        "dp-accounting PLD": dp_by(PLDAccountant),
        "dp-accounting RDP": dp_by(RdpAccountant),
        "opacus PRV": opacus_by("prv"),
        "opacus RDP": opacus_by("rdp"),
    }


def calibrations(seconds):
    settings = [(60_000, 600, 100, 1.0, 1e-5), (50_000, 2000, 100, 4.0, 1e-5), (1_000_000, 1000, 10, 2.0, 1e-7)]
    rows = [_calibrations(*setting) for setting in settings]
    heads = [f"n={n:,}, lot {b}, {e} epochs, ε={eps:g}, δ={d:g}" for n, b, e, eps, d in settings]
    table = [
        "Solving for σ: CPU seconds (σ found).\n",
        f"| accountant | {' | '.join(heads)} |",
        "|---|" + "---|" * len(heads),
    ]
    for name in rows[0]:
        cells = []
        for row in rows:
            answer, used = apart(row[name], seconds)
            cells.append(answer if used is None else f"{used:.2f} ({answer:.4g})")
        table.append(f"| {name} | {' | '.join(cells)} |")
    return table


def thousand(count, seconds):
    noises = [1 + i / 500 for i in range(count)]
    parts = tuple((Term(Gaussian(noise), Policy.POISSON, 0.01), 10) for noise in noises)

    def dp_all(kind):
        def task():
            accountant = kind()
            for noise in noises:
                accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(noise)), 10)
            return accountant.get_epsilon(1e-5)

        return task

    whole = Composition(Adjacency.ADD_REMOVE, parts)
    tasks = {
        "tacit pld": lambda: Pld().epsilon(whole, 1e-5).upper,
        "tacit rdp": lambda: Rdp().epsilon(whole, 1e-5).upper,
        "dp-accounting PLD": dp_all(PLDAccountant),
        "dp-accounting RDP": dp_all(RdpAccountant),
    }
    table = [
        f"{count} different σ from 1 to 3, q = 0.01, ten steps each, δ = 1e-5.\n",
        "| accountant | CPU s | ε |",
        "|---|---|---|",
    ]
    for name, task in tasks.items():
        answer, used = apart(task, seconds)
        table.append(f"| {name} | {answer} | – |" if used is None else f"| {name} | {used:.1f} | {answer:.4f} |")
    return table


def allocations(points, seconds):
    """Random allocation: ours, what Poisson sampling would cost by dp-accounting, and what a simulation would take."""
    table = [
        "Lots of random allocation, once an epoch of 1/q steps, δ = 1e-5. dp-accounting has no such event; its column "
        "is Poisson sampling. The simulation is a plain one, for one standard deviation of 1 % of δ; its time is "
        "extrapolated from a small one.\n",
        "| q, σ, T | ε, certified | CPU s | Poisson by dp-accounting | CPU s | simulation, CPU s |",
        "|---|---|---|---|---|---|",
    ]
    for rate, noise, count in points:
        lots = round(1 / rate)

        def ours(lots=lots, noise=noise, count=count):
            term = Term(Gaussian(noise), Policy.ALLOCATED, 1 / lots, lots, lots)
            found = Pld().epsilon(Composition(Adjacency.ADD_REMOVE, ((term, count // lots),)), 1e-5)
            return found.lower, found.upper

        def simulated(lots=lots, noise=noise, count=count):
            samples = max(200, 10**6 // count)
            rng, loss, start = np.random.default_rng(), np.zeros(samples), time.process_time()
            for _ in range(count // lots):
                z = rng.standard_normal((samples, lots))
                z[:, 0] += 1 / noise
                loss += np.log(np.exp(z / noise - 0.5 / noise**2).mean(axis=1))
            # The variance of (1 - e^(ε - L))+ is at most its mean δ: 1 % of δ takes 1e4 / δ draws at most.
            return (time.process_time() - start) / samples * 1e4 / 1e-5

        (low, high), used = apart(ours, seconds)
        theirs = apart(lambda rate=rate, noise=noise, count=count: dp(PLDAccountant)(rate, noise, count, 1e-5), seconds)
        long, _ = apart(simulated, seconds)
        poisson = f"{theirs[0][0]:.4f} | {theirs[1]:.2f}" if theirs[1] is not None else f"{theirs[0]} | –"
        table.append(f"| {rate:g}, {noise:g}, {count} | {low:.4f} – {high:.4f} | {used:.2f} | {poisson} | {long:.0e} |")
    return table


ALLOCATIONS = [(0.1, 1.0, 100), (0.1, 2.0, 100_000), (0.01, 1.0, 1000), (0.01, 4.0, 10_000), (1e-3, 1.0, 10_000)]


def start_up():
    commands = {
        "tacit --help": ["--help"],
        "tacit account": ["account", "--sampling-rate=0.01", "--noise-multiplier=4", "--steps=10000", "--delta=1e-5"],
    }
    table = ["Start-up, wall-clock seconds, best of five.\n", "| command | s |", "|---|---|"]
    if not (ROOT / "src" / "tacit" / "cli").exists() and not (ROOT / "src" / "tacit" / "cli.py").exists():
        return ["The command line is not there yet; its start-up was not measured.\n"]
    for name, arguments in commands.items():
        best = math.inf
        for _ in range(5):
            start = time.perf_counter()
            done = subprocess.run([sys.executable, "-m", "tacit.cli", *arguments], capture_output=True, check=False)
            best = min(best, time.perf_counter() - start)
        table.append(f"| `{name}` | {best:.2f}{'' if done.returncode == 0 else f' (exit code {done.returncode})'} |")
    return table


def machine():
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    names = ["numpy", "scipy", "dp-accounting", "opacus"] + (["prv-accountant"] if prv_accountant else [])
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{today}; {model}, {os.cpu_count()} cores, one thread; Python {platform.python_version()}, {versions}.\n"


def write(text, begin=BEGIN, end=END):
    page = ROOT / "docs" / "benchmarks.md"
    page.parent.mkdir(exist_ok=True)
    old = page.read_text(encoding="utf-8") if page.exists() else f"# Benchmarks\n\n{begin}\n{end}\n"
    if begin not in old or end not in old:
        old = f"{old.rstrip()}\n\n{begin}\n{end}\n"
    before, rest = old.split(begin, 1)
    after = rest.split(end, 1)[1]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the section in docs/benchmarks.md")
    parser.add_argument("--quick", action="store_true", help="a few points only")
    parser.add_argument("--timeout", type=float, default=10.0, help="CPU seconds for one query")
    options = parser.parse_args()
    long = 30.0 if options.quick else 300.0
    sections = [
        ["## Accounting\n", machine()],
        ["### One query\n", *queries(QUICK if options.quick else GRID, options.timeout), ""],
        ["### Calibration\n", *calibrations(long), ""],
        ["### Many kinds of step\n", *thousand(50 if options.quick else 200, long), ""],
        ["### Random allocation\n", *allocations(ALLOCATIONS[:2] if options.quick else ALLOCATIONS, long), ""],
        ["### The command line\n", *start_up()],
    ]
    text = "\n".join(line for section in sections for line in section)
    print(text)
    if options.write:
        write(text)


if __name__ == "__main__":
    main()
