"""The privacy statement: the guarantee, its assumptions, and the uses of the data that it does not cover."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tacit._version import __version__
from tacit.accounting import Guarantee
from tacit.accounting.guarantee import rounded_up
from tacit.ledger import (
    Allocated,
    CyclicPoisson,
    FixedSize,
    GaussianSum,
    LaplaceSum,
    Ledger,
    OwnedPoisson,
    Poisson,
    Query,
    Sampling,
    Selection,
    Shuffled,
    SparseVector,
    Step,
    TruncatedPoisson,
)

_ADJACENCY = {
    "add/remove": "two data sets are neighbours if one has one {unit} more",
    "replace-one": "two data sets are neighbours if one {unit} is replaced by another",
}


def statement(
    found: Guarantee, ledger: Ledger, *, records: int, isolated: Sequence[str] = (), missing: str | None = None
) -> str:
    """Return the facts that published checklists ask for (Ponomareva et al. 2023; NIST SP 800-226).

    ``isolated`` are the modules that ran one example at a time; ``missing`` names the compiled code that was not there.
    """
    header = ledger.header
    entries = ledger.entries
    steps = sum(count for _, count in entries)
    lines = [
        f"Claim: {found}.",
        "",
        "Setting. Central model: the party that trains sees the records; people who see the releases are not trusted.",
        f"Protected unit: one {found.unit}; {_ADJACENCY[found.adjacency].format(unit=found.unit)}.",
        f"Released: {found.released}.",
        f"Covered: the {steps} steps in the ledger, with everything answered from their samples "
        f"({', '.join(_groups(ledger)) or 'nothing'}).",
        f"Assumed public: the number of records, {records}; model, hyperparameters and when training stops.",
        "Not covered: choices made by looking at the records in other ways (hyperparameter search, preprocessing, "
        "the number of records itself), unless they are in this ledger; logs and metrics marked as not private; "
        "side channels such as running time.",
        "Assumed of the training code: each row of a batch is one record, made from that record alone before it "
        "reaches the model; the loop leaves no lot because of its records.",
        "An example's loss is the one it has alone: a mean over the tokens of a batch counts as the mean over examples "
        "of each one's own mean.",
        *([f"Run one example at a time: {_listed(isolated)}."] if isolated else []),
        "",
        f"Accounting: {found.accountant}, sampling as carried out: {found.sampling}.",
        found.assumptions[0],
    ]
    if any(isinstance(step.sampling, Shuffled) for step, _ in entries):
        lines.append("Shuffled lots: each record once an epoch; no amplification by sampling is claimed.")
    lines += sorted({_ownership(step.sampling) for step, _ in entries if isinstance(step.sampling, OwnedPoisson)})
    plain = [(step, count) for step, count in entries if not _selections(step)]
    if plain:
        lines += _charges(plain, found.delta)
    for step, _ in entries:
        for selection in _selections(step):
            lines += [f"Each run tried, {line}" for line in _charges(selection.candidate, found.delta)]
    if entries:
        epsilons = [float(f"{found.epsilon * share:.2g}") for share in (0.25, 0.5, 1.0, 1.5, 2.0)]
        pairs = zip(epsilons, found.curve(epsilons), strict=True)
        lines.append("The curve, δ at ε: " + ", ".join(f"{_up(d)} at {e:g}" for e, d in pairs) + ".")
    if found.epsilon_lower is not None:
        lines.append(
            f"No accounting of these steps could give less than ε = {math.floor(found.epsilon_lower * 1e4) / 1e4}."
        )
    lines.append(f"An attacker who accuses 1 % of the innocent finds at most {_percent(found)} of the members.")
    randomness = (
        "Randomness: AES-256-CTR keyed by the operating system; privacy is against computationally bounded attackers."
        if header.secure_randomness
        else "Randomness: SEEDED, FOR DEBUGGING. THIS RUN IS NOT PRIVATE."
    )
    lines += [
        randomness,
        _tuning(found),
        "Audit: no audit result is attached to this statement.",
        _arithmetic(entries),
        *([f"Kernels: {missing}."] if missing else []),
        f"Software: tacit {__version__}; ledger written by {header.library}; "
        f"receipt: {len(ledger)} steps, ledger digest {ledger.digest}.",
    ]
    return "\n".join(lines)


def _arithmetic(entries: Sequence[tuple[Step, int]]) -> str:
    """Return the sentences about arithmetic."""
    queries = [query for step, _ in entries for query in step.queries]
    if any(query.group.split("/")[0] == "gradients" for query in queries):
        return f"{_noise(queries)} {_SUMS}"
    return _noise(queries)


_SUMS = (
    "The S of gradients include a margin for rounding in norm, clip factor and sum over the lot (unless the ledger "
    "was begun before tacit had one). Premise, assumed and not checked: the kernels of the forward and backward pass "
    "compute the values of a record, to the last bit, from that record and its own coins alone, not from its place in "
    "a batch, the other rows or their number; and the number of positions of a batch's sequences is public: pad to a "
    "fixed length, do not pack (docs/finite-precision.md)."
)


def _noise(queries: Sequence[Query]) -> str:
    if queries and all(isinstance(query, GaussianSum) and query.noise == "discrete" for query in queries):
        return (
            "Arithmetic: the noise is discrete Gaussian, drawn exactly in whole-number arithmetic, on sums rounded to "
            "a lattice; the rounding is in the clip norms S. The sums before rounding are computed in floating point."
        )
    return "Arithmetic: noise and sums in floating point, rounded to a public grid; not a proof at the level of bits."


def _selections(step: Step) -> list[Selection]:
    return [query for query in step.queries if isinstance(query, Selection)]


def _tuning(found: Guarantee) -> str:
    if not found.tuning:
        return "Tuning: charged if, and only if, its steps are in this ledger."
    return (
        f"Tuning: included. The claim pays for {found.tuning}. It holds for the chosen run (setting, score and model). "
        "It does not hold if an attacker learns the number of runs, the others' settings, scores or models, or the "
        "time that they took."
    )


def _charges(entries: Sequence[tuple[Step, int]], delta: float) -> list[str]:
    """Return lines on noise, sampling, length and groups of steps."""
    multipliers = sorted({_multiplier(step.queries) for step, _ in entries} - {math.inf})
    noise = []
    if multipliers:
        span = f"{multipliers[0]:.4g}" if len(multipliers) == 1 else f"{multipliers[0]:.4g} to {multipliers[-1]:.4g}"
        noise = [f"Noise multiplier of a step (all its queries together): {span}; δ = {delta:.3g}."]
    return [*noise, *_samplings(entries), *_queries(entries), *_others(entries)]


def _samplings(entries: Sequence[tuple[Step, int]]) -> list[str]:
    """Return q and T for every kind of sampling."""
    counts: dict[str, int] = {}
    for step, count in entries:
        event = step.sampling
        if isinstance(event, Poisson | TruncatedPoisson | OwnedPoisson | FixedSize):
            text = f"sampling rate q = {event.rate:.6g}"
        elif isinstance(event, CyclicPoisson):
            text = f"{event.groups} groups in turn, sampling rate q = {event.rate:.6g} in a record's turn"
        else:
            text = _dealt(event)
        counts[text] = counts.get(text, 0) + count
    return ["Steps T: " + "; ".join(f"{count} with {text}" for text, count in counts.items()) + "."]


def _ownership(event: OwnedPoisson) -> str:
    neighbours = {
        "public": "the owners of each record are assumed public, and neighbours differ in the content of one owner's "
        "records",
        "private": "the data set is assumed to have no owner with more, and neighbours differ in an owner and all of "
        "their records",
    }
    return f"Owners: at most {event.most} records of each take part; {neighbours[event.ownership]}."


def _dealt(event: Sampling) -> str:
    if isinstance(event, Shuffled):
        return f"one lot of {event.lots} an epoch"
    if isinstance(event, Allocated):
        return f"{event.participations} of {event.lots} lots an epoch at random"
    return "everyone"


def _queries(entries: Sequence[tuple[Step, int]]) -> list[str]:
    """Return clip norm and noise of every group, or their range if they changed."""
    found: dict[str, list[GaussianSum]] = {}
    for step, _ in entries:
        for query in step.queries:
            if isinstance(query, GaussianSum):
                found.setdefault(query.group, []).append(query)
    return [
        f"Group {group}: clip norm S {_range([query.clip_norm for query in queries])}, "
        f"noise σ on the sum {_range([query.noise_std for query in queries])}{_lattice(queries)}."
        for group, queries in sorted(found.items())
    ]


def _lattice(queries: Sequence[GaussianSum]) -> str:
    steps = [query.lattice for query in queries if query.lattice is not None]
    strategies = sorted({query.strategy for query in queries if query.strategy is not None})
    if strategies:
        return f", fresh in each step and correlated between steps ({', '.join(strategies)})"
    return f", discrete Gaussian on a lattice of step {_range(steps)}" if steps else ""


def _others(entries: Sequence[tuple[Step, int]]) -> list[str]:
    """Return a line for each kind of query with other noise than Gaussian."""
    lines: dict[str, None] = {}
    for query in (query for step, _ in entries for query in step.queries):
        if isinstance(query, LaplaceSum):
            bound, scale = f"{query.clip_norm:.4g}", f"{query.scale:.4g}"
            lines[f"Group {query.group}: clip norm {bound} (L1), Laplace noise of scale {scale} on the sum."] = None
        elif isinstance(query, SparseVector):
            cost = rounded_up(query.threshold_epsilon + query.release_epsilon)
            lines[f"Group {query.group}: sparse vector, {query.releases} values or fewer and ε {cost} a step."] = None
    return list(lines)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _groups(ledger: Ledger) -> list[str]:
    return sorted({query.group for step, _ in ledger.entries for query in step.queries})


def _multiplier(queries: Iterable[Query]) -> float:
    ratios = [query.clip_norm / query.noise_std for query in queries if isinstance(query, GaussianSum)]
    return 1 / math.hypot(*ratios) if ratios else math.inf


def _up(delta: float) -> str:
    """δ to two figures, never rounded below the bound it is."""
    text = f"{delta:.1e}"
    return text if float(text) >= delta else f"{delta * 1.05:.1e}"


def _percent(found: Guarantee) -> str:
    return f"{rounded_up(100 * found.attack_power([0.01])[0], 1)} %"


def _listed(isolated: Sequence[str]) -> str:
    """Return the names of a few modules as text."""
    names = [name or "the whole model" for name in isolated]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
