"""The table of docs/tuning.md is what the code says, rounded up."""

import re
from pathlib import Path

import pytest

import tacit
from tacit.accounting import guarantee
from tacit.ledger import Everyone, GaussianSum, Header, Poisson, Step
from tacit.tuning import PoissonTrials, TruncatedNegativeBinomial, plan

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"
SETTINGS = {"records": 60_000, "lot_size": 600, "delta": 1e-5}
NOISE = 1.514
RUN = Step(Poisson(rate=0.01, records=60_000), (GaussianSum(group="gradients", clip_norm=1.0, noise_std=NOISE),))


ACCOUNTANTS = ("pld", "rdp")


def epsilon(accountant, *entries):
    return guarantee(entries, Header(), delta=1e-5, accountant=accountant).epsilon


def single(accountant, runs):
    return tacit.plan(**SETTINGS, steps=1000 * runs, epsilon=2.0, accountant=accountant).noise_multiplier


def row(accountant, make):
    whole = [epsilon(accountant, (Step(Everyone(), (make(mean).event(((RUN, 1000),)),)), 1)) for mean in (10, 100)]
    noise = plan(make(10), **SETTINGS, steps=1000, epsilon=2.0, accountant=accountant).noise_multiplier
    return [*whole, noise, f"{100 * make(10).chance_tried(10):.0f} %"]


EXPECTED = {
    "one run, nothing chosen": lambda by: [epsilon(by, (RUN, 1000))] * 2 + [single(by, 1), "–"],
    "`try_all`": lambda by: [epsilon(by, (RUN, 10_000)), epsilon(by, (RUN, 100_000)), single(by, 10), "100 %"],
    "`choose`, `PoissonTrials`": lambda by: row(by, lambda mean: PoissonTrials(mean=float(mean))),
} | {
    f"`choose`, `TruncatedNegativeBinomial`, η = {eta:g}": lambda by, eta=eta: row(
        by, lambda mean: TruncatedNegativeBinomial.of_mean(mean, eta=eta)
    )
    for eta in (1.0, 0.0, -0.5)
}


def rows(accountant):
    table = PAGE.read_text().split(f"<!-- {accountant} table")[1].split("\n\n")[1]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    return {line[0]: line[1:] for line in cells}


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_every_way_has_its_row(accountant):
    assert rows(accountant).keys() == EXPECTED.keys()
    assert re.search(r"Computed on \d+ \w+ 20\d\d with tacit \S+, numpy \S+ and torch \S+\.", PAGE.read_text())


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("way", EXPECTED)
def test_the_row_is_what_the_code_says(way, accountant):
    written, values = rows(accountant)[way], EXPECTED[way](accountant)
    assert written[-1] == values[-1]
    for text, value in zip(written[:-1], values[:-1], strict=True):
        assert value <= float(text) <= value * 1.01
