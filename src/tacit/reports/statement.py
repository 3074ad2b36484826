"""The privacy statement of a report: the answers to published checklists in plain words, line by line.

(Ponomareva et al. 2023, "How to DP-fy ML", section 5.3; NIST SP 800-226, 2025.) The same lines make the HTML page and
the model card; `tacit.training.statement` is the short form of a run that is still in memory.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from tacit.accounting.accountants import find
from tacit.accounting.guarantee import Guarantee, rounded_up
from tacit.accounting.selection import in_words
from tacit.ledger import Selection, Shuffled
from tacit.reports import attacks, events
from tacit.reports.findings import Findings, Run
from tacit.reports.said import clean

_ADJACENCY = {
    "add/remove": "Two data sets are neighbours if one has one {unit} more (add/remove).",
    "replace-one": "Two data sets of the same size are neighbours if one {unit} is replaced by another (replace-one).",
}


def claim(found: Guarantee | None) -> str:
    """Return the one line to quote, with everything that the numbers depend on."""
    if found is None:
        return "No privacy guarantee is proved for this run."
    sampled = found.sampling if "sampling" in found.sampling else f"{found.sampling} sampling"
    line = (
        f"{clean(found.unit)}-level (ε ≤ {rounded_up(found.epsilon)}, δ = {up(found.delta)}), "
        f"{found.adjacency}, {sampled}, all checkpoints"
    )
    if found.tuning:
        line = line.replace("all checkpoints", f"the chosen run only; tuning included: {clean(found.tuning)}")
    return line if found.secure_randomness else f"NOT PRIVATE (seeded): {line}"


def lines(run: Run, facts: Findings) -> list[tuple[str, str]]:
    """(heading, text) pairs."""
    book, found = run.ledger, facts.guarantee
    unit = clean(book.header.unit)
    names = sorted({clean(name) for name in groups(run)})
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    records = "the number of records" + (f" ({facts.records})" if facts.records else "")
    pairs = [
        (
            "Setting and trust",
            "Central. The party that trains sees the records in the clear and is trusted with them; people who see "
            "the releases are not trusted, and may know everything about all other records.",
        ),
        ("Protected unit", f"One {unit}. {_ADJACENCY[book.header.adjacency.value].format(unit=unit)}"),
        ("Released", _released(found)),
        (
            "Covered",
            f"The {len(book)} steps in the ledger with everything answered from their samples: {shown or 'nothing'}.",
        ),
        ("Sampling", _sampling(run, found)),
        ("Hyperparameter search", _tuning(run)),
        ("Taken to be public", f"The model's architecture, all settings, {records}, and when training stops."),
        ("Accounting", _accounting(facts)),
    ]
    if found is not None:
        pairs.append(("Meaning of this ε", _strength(facts)))
        if found.secure_randomness:
            pairs.append(("A family of four", _family(found)))
    pairs += [
        (
            "Randomness",
            "AES-256 in counter mode, keyed by the operating system; the guarantee is against attackers who cannot "
            "break AES-256."
            if book.header.secure_randomness
            else "SEEDED, FOR DEBUGGING. This run is not private.",
        ),
        ("Arithmetic", "Floating point, rounded to a public grid; proved for real numbers, not bit by bit."),
        ("Audit", attacks.summary(run, facts)),
    ]
    return pairs


def uncovered(run: Run) -> list[str]:
    """Return what the guarantee does not cover, a sentence each."""
    book, unit = run.ledger, clean(run.ledger.header.unit)
    tuned = any(isinstance(query, Selection) for step, _ in book.entries for query in step.queries)
    items = []
    if not tuned:
        items.append("Settings chosen by looking at these records: no hyperparameter search is in the ledger.")
    items += [
        "Preprocessing, selection or normalisation of the records that is not a row of the ledger table.",
        "Other runs on the same records: their costs add up, and each has its own ledger.",
        f"Several {unit}s that belong together (one person's, one family's): k of them have about k times the ε, and a "
        "larger δ.",
        "What the model says about people in general: learning that is the purpose, and it affects those who are not "
        "in the data as well.",
        "Side channels: running time, memory, logs, and people with access to the training machine.",
        f"The number of {unit}s, and faults in the training code such as rows made from more than one record.",
    ]
    tested = score(run)
    if tested is None or not tested.paid:
        items.append("The records that accuracy was measured on, if they are about people: test figures have no noise.")
    if any(attack.objects("rates") for attack in run.said.object("audit").objects("attacks")):
        items.append("The rates of membership attacks, which were counted on the records without noise.")
    exposed = sorted(
        {clean(name) for entry in run.said.objects("history") for name in _exposed(entry.value("metrics"), groups(run))}
    )
    if exposed:
        items.insert(0, f"Metrics of this run that have no privacy: {', '.join(exposed[:12])}.")
    return items


class Score(NamedTuple):
    """The score of a model, and whether it was released with noise and charged."""

    title: str
    value: str
    paid: bool

    @property
    def note(self) -> str:
        return "with noise, paid for" if self.paid else "public test set; not private, not covered"


def score(run: Run) -> Score | None:
    """The test score of run.json; whether it was paid for the ledger says."""
    released = groups(run)
    accuracy = run.said.number("result", "test_accuracy")
    if accuracy is not None and 0 <= accuracy <= 1:
        return Score("Test accuracy", f"{100 * accuracy:.2f} %", "metrics/test_accuracy" in released)
    error = run.said.number("result", "test_mean_absolute_error")
    if error is not None:
        return Score("Mean absolute test error", f"{error:.4g}", "metrics/test_mean_absolute_error" in released)
    return None


def groups(run: Run) -> frozenset[str]:
    """The names of everything the ledger says was released."""
    inner = (query for step, _ in events.inside(run.ledger.entries) for query in step.queries)
    outer = (query for step, _ in run.ledger.entries for query in step.queries)
    return frozenset(query.group for query in itertools.chain(outer, inner))


def paid_for(name: str, metric: object, released: frozenset[str]) -> bool:
    """Return True if a metric of run.json is private: it says so, and the ledger was charged for it."""
    says = isinstance(metric, dict) and metric.get("private") is True
    return says and (f"metrics/{name}" in released or name in released)


def _exposed(metrics: object, released: frozenset[str]) -> list[str]:
    if not isinstance(metrics, dict):
        return []
    return [name for name, metric in metrics.items() if not paid_for(name, metric, released)]


def _released(found: Guarantee | None) -> str:
    if found is not None and found.tuning:
        return (
            "The noisy values outside the search, and the chosen run: its final model and all its checkpoints. NOT "
            "the other runs, their number or their scores: the guarantee holds only if these stay secret."
        )
    return (
        "Every noisy value that the ledger lists, and so everything computed from them: the final model and all "
        "checkpoints on the way."
    )


def _sampling(run: Run, found: Guarantee | None) -> str:
    kinds: dict[str, int] = {}
    for step, count in events.inside(run.ledger.entries):
        words = events.sampling(step.sampling)
        kinds[words] = kinds.get(words, 0) + count
    listed = [f"{words} ({count} steps)" if count > 1 else f"{words} (1 step)" for words, count in kinds.items()]
    more = f"; and {len(listed) - 4} more kinds" if len(listed) > 4 else ""
    text = f"As carried out, written down by the sampler itself: {'; '.join(listed[:4]) or 'none'}{more}."
    if found is not None:
        text += " The accountant assumes exactly this."
    if any(isinstance(step.sampling, Shuffled) for step, _ in events.inside(run.ledger.entries)):
        text += " Shuffled lots: each record is in one lot an epoch, and no amplification by sampling is claimed."
    return text


def _tuning(run: Run) -> str:
    for step, _ in run.ledger.entries:
        for query in step.queries:
            if isinstance(query, Selection):
                return f"Charged: the ledger has {in_words(query)}."
    return (
        "Not charged: the ledger lists no search. The settings must have been chosen without looking at these records."
    )


def _accounting(facts: Findings) -> str:
    found = facts.guarantee
    if found is None:
        return "No accountant has a proof for the steps in the ledger."
    label = next(one.label for one in facts.spending if one.accountant == found.accountant)
    text = f"{label} ({found.accountant}), computed anew from the ledger for this report; ε is an upper bound."
    if found.epsilon_lower:
        floor = math.floor(found.epsilon_lower * 1e4) / 1e4
        text += f" No correct accounting of these steps could give less than ε = {floor:.4f}."
    return text


def _strength(facts: Findings) -> str:
    found = facts.guarantee
    assert found is not None
    if not found.secure_randomness:
        return "Nothing: the run was seeded. With secure randomness it would be what the charts below show."
    odds = math.exp(found.epsilon) if found.epsilon < 700 else math.inf
    shown = rounded_up(odds) if odds < 1e4 else f"{odds * 1.05:.1e}"
    tier = "strong" if found.epsilon <= 1 else "reasonable" if found.epsilon <= 10 else "weak"
    power = facts.attack_power([0.01])[0]
    return (
        f"Seeing all that is released changes the odds on any fact about one {clean(found.unit)} at most {shown}-fold, "
        f"except with a probability of about δ. An attacker who wrongly accuses 1 % of the absent finds at most "
        f"{percent(power)} of those present. In the tiers of Ponomareva et al. (2023) this is {tier}."
    )


def _family(found: Guarantee, size: int = 4) -> str:
    """Return what holds for so many records together, such as those of a family or one person's visits."""
    method, unit = find(found.accountant), clean(found.unit)
    try:
        epsilon = method.group(found.composition, size, delta=found.delta).upper
    except ValueError:  # no finite bound, or none that is proved
        epsilon = math.inf
    if not math.isfinite(epsilon):
        return f"For {size} {unit}s together there is no guarantee at this δ (`tacit account LEDGER --group {size}`)."
    return (
        f"For any {size} {unit}s together, a family or one person's several records, ε is {rounded_up(epsilon)} at the "
        f"same δ. For other numbers: `tacit account LEDGER --delta {found.delta:g} --group N`."
    )


def up(delta: float) -> str:
    """δ to three figures, never below the bound it is.

    >>> up(1e-5), up(1.0001e-5), up(0.0)
    ('1e-05', '1.01e-05', '0')
    """
    text = f"{delta:.3g}"
    return text if float(text) >= delta else f"{delta * 1.005:.3g}"


def percent(share: float) -> str:
    """A share as a percentage, rounded up and never above 100 %."""
    return f"{min(float(rounded_up(100 * share, 1)), 100.0):.3g} %"
