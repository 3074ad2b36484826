"""Group privacy: several records together, against oracles that share no code with the accountant."""

import itertools
import json
import math

import numpy as np
import pytest
from mpmath import mp
from scipy.stats import binom, norm
from typer.testing import CliRunner

from tacit.accounting import Composition, gaussian, groups, guarantee
from tacit.accounting.accountants import find
from tacit.accounting.composition import Gaussian, Laplace, Policy, Term
from tacit.cli import app
from tacit.ledger import Adjacency, Everyone, GaussianSum, Header, Ledger, Poisson, Step

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def steps(rate, noise, count, adjacency=ADD, policy=Policy.POISSON):
    return Composition(adjacency, ((Term(Gaussian(noise), policy, rate), count),))


def one_step(rate, noise, size, epsilon, added):
    """δ(ε) of the binomial mixture of N(j/σ) against N(0), or the other way round, by the best half-line."""
    with mp.workdps(40):
        q, shift, e = mp.mpf(rate), 1 / mp.mpf(noise), mp.exp(mp.mpf(epsilon))
        weights = [mp.binomial(size, j) * q**j * (1 - q) ** (size - j) for j in range(size + 1)]

        def ratio(x):
            return sum(w * mp.exp(j * shift * x - (j * shift) ** 2 / 2) for j, w in enumerate(weights))

        target = 1 / e if added else e
        if target <= weights[0]:
            return mp.mpf(0)
        low, high = mp.mpf(-200), mp.mpf(200)
        for _ in range(160):
            middle = (low + high) / 2
            low, high = (middle, high) if ratio(middle) < target else (low, middle)

        def above(j):
            return mp.erfc((high - j * shift) / mp.sqrt(2)) / 2

        def below(j):
            return mp.erfc((j * shift - high) / mp.sqrt(2)) / 2

        if added:
            return below(0) - e * sum(w * below(j) for j, w in enumerate(weights))
        return sum(w * above(j) for j, w in enumerate(weights)) - e * above(0)


@pytest.mark.parametrize(
    ("rate", "noise", "size", "epsilon"),
    list(itertools.product((0.01, 0.1, 0.5), (0.8, 1.5, 2.5), (2, 5), (0.1, 0.3, 0.6, 1.0))),
)
def test_one_step_of_a_group_costs_what_forty_digits_say(rate, noise, size, epsilon):
    exact = max(one_step(rate, noise, size, epsilon, added) for added in (False, True))
    found = find("pld").group(steps(rate, noise, 1), size, epsilon=epsilon)
    assert found.lower <= exact * (1 + 1e-9) + 1e-15
    assert exact <= found.upper * (1 + 1e-9)
    assert found.upper <= exact * 1.05 + 1e-12


@pytest.mark.parametrize(("rate", "noise", "size", "count"), [(0.2, 1.0, 3, 4), (0.05, 0.7, 2, 6), (0.5, 3.0, 4, 10)])
def test_several_steps_are_within_what_draws_of_the_losses_say(rate, noise, size, count):
    """Monte Carlo with an interval of five deviations, in the direction of removed records."""
    rng = np.random.default_rng(size)
    draws = 300_000
    x = rng.normal(size=(count, draws)) + rng.binomial(size, rate, size=(count, draws)) / noise
    j = np.arange(size + 1)
    weights = binom.pmf(j, size, rate)
    ratio = sum(w * np.exp(k / noise * x - (k / noise) ** 2 / 2) for k, w in zip(j, weights, strict=True))
    for epsilon in (0.3, 1.0):
        values = np.maximum(-np.expm1(epsilon - np.log(ratio).sum(axis=0)), 0.0)
        mean, spread = values.mean(), 5 * values.std() / math.sqrt(draws)
        found = find("pld").group(steps(rate, noise, count), size, epsilon=epsilon)
        assert found.lower <= mean + spread and mean - spread <= found.upper


def test_a_group_of_one_is_one_record():
    composition = steps(0.01, 1.0, 1000)
    alone = find("pld").epsilon(composition, 1e-5)
    found = find("pld").group(composition, 1, delta=1e-5)
    assert found.lower <= alone.upper and alone.lower <= found.upper
    assert found.upper == pytest.approx(alone.upper, rel=1e-3)


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
@pytest.mark.parametrize("size", [2, 5])
def test_without_sampling_a_group_is_a_larger_shift(adjacency, size):
    composition = Composition(adjacency, ((Term(Gaussian(4.0)), 9),))
    shift = composition.shift_factor * size * 3 / 4.0
    assert find("pld").group(composition, size, delta=1e-6).upper == pytest.approx(gaussian.epsilon(shift, 1e-6))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_rule_for_anything_covers_the_pair_of_a_group(accountant):
    composition = steps(0.01, 2.0, 500, REPLACE)
    single = find(accountant)
    for size in (2, 4):
        found = groups.epsilon(lambda least: single.epsilon(composition, least).upper, 1e-6, size).upper
        assert single.group(composition, size, delta=1e-6).upper <= found
        part = found / size
        share = sum(math.exp(i * part) for i in range(size))
        assert single.delta(composition, part).upper * share <= 1e-6 * (1 + 1e-3)
        # k records of one kind added, sampled each: a concrete pair that the rule must cover.
        assert found >= find("pld").group(steps(0.01, 2.0, 500), size, delta=1e-6).lower


def test_a_group_of_laplace_sums_is_paid_record_by_record():
    composition = Composition(ADD, ((Term(Laplace(1.0, 1)), 1),))
    found = find("pld").group(composition, 3, delta=1e-9).upper
    assert 3 * (1 - 1e-3) <= found <= 3 * (1 + 1e-3)


def test_a_group_costs_more_the_larger_it_is():
    composition = steps(0.02, 1.5, 300)
    found = [find("pld").group(composition, size, delta=1e-6).upper for size in (1, 2, 3, 4, 8, 16)]
    assert all(after > before for before, after in itertools.pairwise(found))
    assert find("rdp").group(composition, 8, delta=1e-6).upper >= found[4]


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("rate", [1e-6, 0.03, 0.9])
def test_cells_of_the_mixture_hold_its_masses(rate, added):
    pair = groups.Several(groups.GaussianLoss(0.8), rate, 4, added)
    edges = np.concatenate([[-np.inf], np.linspace(-3, 6, 181), [np.inf]])
    cells = pair.cells(edges)
    assert cells.p.sum() == pytest.approx(1, abs=1e-12) and cells.q.sum() == pytest.approx(1, abs=1e-12)
    x = np.linspace(-12, 16, 400_001)
    normal = norm.pdf(x)
    weights = binom.pmf(np.arange(5), 4, rate)
    mixture = sum(w * norm.pdf(x - 0.8 * j) for j, w in enumerate(weights))
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.log(mixture / normal) * (-1 if added else 1)
    p, q = (normal, mixture) if added else (mixture, normal)
    inside = np.isfinite(loss)
    for mass, density in ((cells.p, p), (cells.q, q)):
        counted = np.histogram(loss[inside], edges[1:-1], weights=density[inside] * (x[1] - x[0]))[0]
        assert mass[1:-1] == pytest.approx(counted, abs=2e-4)
    finite = np.exp(edges[1:-1])
    assert cells.rise[1:] == pytest.approx(cells.p[1:] - finite * cells.q[1:], abs=1e-12)


def test_the_command_line_answers_for_a_group(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, Header()) as ledger:
        for _ in range(20):
            ledger.record(Step(Poisson(rate=0.1), (GaussianSum(group="all", clip_norm=1.0, noise_std=2.0),)))
    done = CliRunner().invoke(app, ["account", str(path), "--delta", "1e-5", "--group", "5", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    expected = find("pld").group(steps(0.1, 2.0, 20), 5, delta=1e-5).upper
    assert found["group"] == 5 and found["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert found["epsilon_lower"] > find("pld").epsilon(steps(0.1, 2.0, 20), 1e-5).upper


def test_a_guarantee_says_for_how_many_records_it_is():
    step = Step(Everyone(), (GaussianSum(group="all", clip_norm=1.0, noise_std=4.0),))
    found = guarantee([(step, 1)], Header(), delta=1e-5, group=4)
    assert "for any 4 records together" in str(found)
    assert found.curve([found.epsilon])[0] == pytest.approx(1e-5, rel=1e-3)
    with pytest.raises(ValueError, match="group is 0"):
        guarantee([(step, 1)], Header(), delta=1e-5, group=0)
