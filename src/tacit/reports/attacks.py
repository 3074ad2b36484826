"""The findings of attacks on a run: lower bounds beside the claim, as `tacit audit` wrote them into run.json."""

from __future__ import annotations

import math

from tacit.accounting.guarantee import rounded_up
from tacit.reports.findings import Findings, Run
from tacit.reports.said import Said

HEADINGS = ("Attack", "On", "Found", "How")
_BOUNDS = (
    ("epsilon_audited", "no assumption"),
    ("epsilon_audited_gaussian", "Gaussian noise of unknown size"),
    ("epsilon_audited_independent", "the same, independent"),
)


def rows(run: Run) -> list[tuple[str, str, str, str]]:
    """Return a row for each attack: its name, what was attacked, the lower bounds and rates, and how it went."""
    return [_row(attack) for attack in run.said.object("audit").objects("attacks")[:50]]


def origin(run: Run) -> str:
    """Return who audited the run, when and how, in one sentence; empty if there was no audit."""
    audit = run.said.object("audit")
    if not audit.values:
        return ""
    words = f"By {audit.text('by') or 'unknown'}, {audit.text('when') or 'no date'}"
    how = audit.text("how")
    words += f", with `{how}`" if how else ""
    version = audit.text("version")
    words += f" (tacit {version})" if version else ""
    return words + ("; seeded, to be repeated." if audit.number("seed") is not None else ".")


def summary(run: Run, facts: Findings) -> str:
    """Return the audit in a paragraph: the largest lower bound beside the claim, the attacks, who, when and how."""
    audit = run.said.object("audit")
    if not audit.values:
        return "Not audited."
    lower, parts = audit.number("epsilon_lower"), []
    if lower is not None:
        beside = "" if facts.epsilon is None else f", beside the claim of at most {rounded_up(facts.epsilon)}"
        parts.append(f"Worst-case canaries prove ε of at least {_down(lower)}{beside}.")
    parts += [f"{name} ({what}): {found}." for name, what, found, _ in rows(run)]
    parts.append(origin(run))
    parts.append("As run.json has it. An audit finds lower bounds; it can refute the claim, not prove it.")
    return " ".join(parts)


def _row(attack: Said) -> tuple[str, str, str, str]:
    rates = attack.objects("rates")
    found = [
        f"ε ≥ {_down(value)} ({label})"
        for name, label in (_BOUNDS if not rates else (("epsilon_audited", "if members and others were drawn alike"),))
        if (value := attack.number(name)) is not None
    ]
    for rate in rates[:4]:
        wanted, hit, low, high = (
            rate.number(name) for name in ("false_positive_rate", "true_positive_rate", "low", "high")
        )
        if wanted is not None and hit is not None and low is not None and high is not None:
            found.append(f"TPR {hit:.2%} ({low:.2%} to {high:.2%}) at FPR {wanted:.1%}")
    target = "natural records, the released model" if rates else "worst-case canaries, the training path"
    return attack.text("attack") or "unnamed", target, "; ".join(found) or "nothing", attack.text("details") or "–"


def _down(value: float) -> str:
    return f"{math.floor(value * 1000) / 1000:.3f}"
