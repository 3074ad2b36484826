"""Write the zoo's results as text: a line, a table, a page of the documentation."""

from __future__ import annotations

import datetime
import re
import statistics
from collections import Counter, defaultdict
from importlib import metadata
from typing import Any

Row = dict[str, Any]
ACCEPTED = ("fast", "isolated")


def outcome(row: Row, part: str) -> str:
    return str(row.get(part, {}).get("outcome", "-"))


def line(row: Row) -> str:
    tacit = row.get("tacit", {})
    text = f"{row['name']:26} {outcome(row, 'tacit'):9} {outcome(row, 'opacus'):9}"
    if outcome(row, "entry") != "ok":
        text += f" ENTRY {outcome(row, 'entry')}: {row['entry'].get('reason', '')}"
    if "public" in row:
        text += f" [make_private: {outcome(row, 'public')}]"
    if "declared" in tacit:
        text += f" [mean declared: {tacit['declared']['outcome']}]"
    return text + f" {tacit.get('reason', '')[:160]}"


def isolated(row: Row) -> str:
    names = row.get("tacit", {}).get("isolated", [])
    return ", ".join(f"`{name or 'the whole model'}`" for name in names)


def counts(rows: list[Row]) -> str:
    """Return the table of counts by family, the mixing models apart."""
    families: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        families[row["family"] if row["honest"] else "mixing"].append(row)
    lines = [
        "| family | models | Tacit fast | isolated | refused | wrong | crash "
        "| Opacus exact | refused | wrong | crash |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    whole: Counter[str] = Counter()
    for family, members in families.items():
        found: Counter[str] = Counter()
        for row in members:
            found.update(["n", f"tacit {outcome(row, 'tacit')}", f"opacus {outcome(row, 'opacus')}"])
        if family != "mixing":
            whole += found
        lines.append(_counted(family, found))
    return "\n".join([*lines, _counted("all honest models", whole)])


def _counted(name: str, found: Counter[str]) -> str:
    columns = [found["n"], *(found[f"tacit {o}"] for o in ("fast", "isolated", "refused"))]
    columns += [found["tacit wrong"] + found["tacit accepted"], found["tacit crash"], found["opacus exact"]]
    columns += [found["opacus refused"], found["opacus wrong"] + found["opacus accepted"], found["opacus crash"]]
    return f"| {name} | " + " | ".join(str(c) for c in columns) + " |"


def general(reason: str) -> str:
    """Drop the module's name and numbers from a reason, so that equal reasons count together."""
    reason = re.sub(r"^[^`]*?\([A-Za-z0-9_]+\): ", "", reason)
    reason = re.sub(r"^[\w.]+ \(\w+\) ", "", reason)
    return re.sub(r"\d+", "N", reason)[:120]


def reasons(rows: list[Row]) -> str:
    found = Counter(general(r["tacit"]["reason"]) for r in rows if r["honest"] and "reason" in r.get("tacit", {}))
    return "\n".join(f"{count:4}  {reason}" for reason, count in found.most_common())


def table(rows: list[Row]) -> str:
    lines = [
        "| model | family | Tacit | error | isolated or reason | step ÷ ordinary | Opacus |",
        "|---|---|---|---:|---|---:|---|",
    ]
    for row in rows:
        tacit = row.get("tacit", {})
        error = f"{tacit['error']:.0e}" if "error" in tacit else ""
        ratio = f"{row['time']['ratio']:.2f}" if "ratio" in row.get("time", {}) else ""
        why = (isolated(row) or tacit.get("reason", "")).replace("|", "\\|")
        family = row["family"] if row["honest"] else f"{row['family']} (mixes)"
        lines.append(f"| {row['name']} | {family} | {outcome(row, 'tacit')} | {error} | {why} | {ratio} | "
                     f"{outcome(row, 'opacus')} |")  # fmt: skip
    return "\n".join([*lines, "", counts(rows), "", "Reasons, honest models:", reasons(rows)])


def shares(rows: list[Row]) -> str:
    """Say in a paragraph how many honest models are fast, and what a step costs."""
    honest = [row for row in rows if row["honest"]]
    lists = [row for row in honest if row["name"].startswith("pyg-")]
    others = [row for row in honest if row not in lists]
    ratios = [row["time"]["ratio"] for row in honest if "ratio" in row.get("time", {})]
    several = (
        f"{_fast(honest)} honest models are fast; graphs that are batched into one list of nodes (`pyg-`) have no "
        f"dimension that belongs to them and run one at a time, and of the other models {_fast(others)}."
    )
    if ratios:
        several += f" The median ratio of {len(ratios)} models is {statistics.median(ratios):.2f}."
    return several


def _fast(rows: list[Row]) -> str:
    fast = sum(outcome(row, "tacit") == "fast" for row in rows)
    return f"{fast} of {len(rows)} ({100 * fast / max(len(rows), 1):.1f} %)"


def _commits(rows: list[Row], part: str) -> str:
    """Return the commits that a part was measured on."""
    found = {str(row[part].get("commit", row.get("commit"))) for row in rows if part in row}
    return " and ".join(sorted(found)) or "none"


def page(rows: list[Row]) -> str:
    packages = ("torch", "transformers", "peft", "timm", "torchvision", "torch_geometric", "opacus")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    when = f", commit {_commits(rows, 'tacit')} (step ratios: {_commits(rows, 'time')})"
    return f"""# Which models train privately as they are

`benchmarks/zoo.py` trains {len(rows)} models in small random configurations: those of the packages below, and plain
PyTorch as tutorials and papers write it. Each has the loss and the kind of data that its documentation shows, padded
masks and ignored labels included; the values are random. Two things are changed: dropout is off,
because the reference cannot draw the same masks, and image models have group norm in the place of batch norm. Every
example's gradient norm and the clipped sum are compared with a loop over single examples through ordinary autograd, on
three batches of different sizes (one has a single example), in float32 to 1e-4. Where the two differ by more, both are
compared with the loop in float64, and the table shows both errors: Tacit's may be 1e-4, or twice the loop's own.
A loss that is a mean over the tokens of the batch counts as the mean of the examples' own means, which is what
the loop computes.

- **fast**: one forward and one backward pass for the whole batch.
- **isolated**: exact; the named modules run one example at a time.
- **refused**: an error of the library that says why.
- **wrong**: the result differs from the loop, or a model that mixes examples was accepted.
- **crash**: another error, a segmentation fault or a hang.

Opacus runs with its default hooks and validator on the first batch; on a token mean its gradients weigh an example by
its share of the batch's tokens, which depends on the other examples, and count as wrong. The step ratio is the CPU time
of a forward and backward pass with clipping over the same without privacy, for 32 examples; models of this size show
the engine's fixed cost more than its cost at real sizes, which docs/benchmarks.md has.

`walked` are architectures of `transformers` that the engine was not developed with: each configuration is made small by
the names of its fields, and trained on the task's own head. `tutorial` and `stranger` are loops and networks as
tutorials and papers write them; those of `stranger`, half of the adapters, nine models of timm and most layers
of `torch_geometric` were written down before the engine was tried on them. What that found was repaired: gradient hooks
of parameters (`peft-osf`), draws of gamma and Poisson distributions, a last batch of one for `perceiver`.
`visitor` are 50 honest models and 39 mistakes that were written down after all of these. Three of the honest ones were
refused at first (means over picked rows, constants looked up by `gather`, triangular systems); no mistake was accepted.
Of 210 more pairs of an architecture of `transformers` and a task, 101 could be built like those of `walked` and repeat
themselves: all were fast and exact.

`gradient-penalty` and `physics-informed` run with `isolate=True`, as the error says, and losses that are scaled as a
whole (`kl-distillation`, `loss-over-accumulation`, `bidaf`, `vae-summed`, …) with `reduction="mean"`, which
`make_private` need not be told: its trial learns the scale.

Honest models that are refused get a remedy: a model that was scripted or traced by `torch.jit` hides its operations
(give the module it was made of). Left out are `peft` methods that draw random numbers in training (PVERA, Poly), which
no reference can repeat; `make_private` takes them.

`timm-resnet26d` and `tv-mnasnet0_5` differ from the loop in float32 by more than 1e-4. It is the loop that is off there
(7e-4 and 6e-3 from the loop in float64; Tacit 2e-5 and 6e-3): two entries of one pooled window are equal up to
rounding, so that another one is the largest, and a loss of 2e-7 has few correct digits.

{datetime.date.today()}, {versions}{when}. Repeat with `make zoo`.

{shares(rows)}

## Counts
{counts(rows)}

## Models
{table(rows).split(chr(10) + chr(10))[0]}
"""
