"""What an owner of several records costs, against oracles that share no code: coin patterns one by one, and draws."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from mpmath import mp
from typer.testing import CliRunner

from tacit.accounting import Filter, Unproved, compose, groups, guarantee, plan
from tacit.accounting.accountants import find
from tacit.cli import app
from tacit.ledger import (
    AdaptiveBudget,
    Budget,
    BudgetExceeded,
    Everyone,
    GaussianSum,
    Header,
    Ledger,
    OwnedPoisson,
    Poisson,
    Step,
)


def entries(rate: float, noise: float, most: int, count: int = 1) -> list[tuple[Step, int]]:
    query = GaussianSum(group="all", clip_norm=1.0, noise_std=noise)
    return [(Step(OwnedPoisson(rate=rate, records=1000, most=most), (query,)), count)]


def bounds(found: list[tuple[Step, int]], adjacency: str, **given: float) -> Any:
    return guarantee(found, Header(adjacency=adjacency, unit="owner"), **given)  # type: ignore[arg-type]


def worst(rate: float, noise: float, most: int, epsilon: float, adjacency: str) -> Any:
    """δ(ε) of one step, over all 2^most patterns of the owner's coins, each with its own Gaussian, by half-lines."""
    with mp.workdps(40):
        q, e = mp.mpf(rate), mp.exp(mp.mpf(epsilon))
        chances, places = [], []
        for coins in itertools.product((0, 1), repeat=most):
            chances.append(mp.fprod(q if coin else 1 - q for coin in coins))
            places.append(sum(coins) / mp.mpf(noise))

        def above(x: Any, sign: int) -> Any:
            pairs = zip(chances, places, strict=True)
            return mp.fsum(w * mp.erfc((x - sign * place) / mp.sqrt(2)) for w, place in pairs) / 2

        def density(x: Any, sign: int) -> Any:
            return mp.fsum(w * mp.exp(-((x - sign * place) ** 2) / 2) for w, place in zip(chances, places, strict=True))

        sides = [(1, -1)] if adjacency == "replace-one" else [(1, 0), (0, 1)]
        found = []
        for one, other in sides:
            way = 1 if one > other else -1  # where the ratio of the two grows with x, or falls
            low, high = mp.mpf(-100), mp.mpf(100)
            for _ in range(140):
                middle = (low + high) / 2
                more = density(way * middle, one) > e * density(way * middle, other)
                low, high = (low, middle) if more else (middle, high)
            x = way * high
            masses = (above(x, one), above(x, other)) if way > 0 else (1 - above(x, one), 1 - above(x, other))
            found.append(masses[0] - e * masses[1])
        return max(*found, mp.mpf(0))


CASES = list(itertools.product((0.01, 0.2, 0.6), (0.8, 2.0), (1, 2, 4), (0.1, 0.7), ("add/remove", "replace-one")))


@pytest.mark.parametrize(("rate", "noise", "most", "epsilon", "adjacency"), CASES)
def test_one_step_costs_an_owner_what_forty_digits_say(
    rate: float, noise: float, most: int, epsilon: float, adjacency: str
) -> None:
    exact = worst(rate, noise, most, epsilon, adjacency)
    composition = compose(entries(rate, noise, most), adjacency)  # type: ignore[arg-type]
    found = find("pld").delta(composition, epsilon)
    assert found.lower is not None
    assert found.lower <= exact * (1 + 1e-9) + 1e-15
    assert exact <= found.upper * (1 + 1e-9) + 1e-30
    assert found.upper <= exact * 1.05 + 1e-12


@pytest.mark.parametrize("adjacency", ["add/remove", "replace-one"])
@pytest.mark.parametrize(("rate", "noise", "most", "count"), [(0.2, 1.0, 3, 4), (0.05, 0.7, 2, 6), (0.5, 3.0, 4, 10)])
def test_several_steps_are_within_what_draws_of_the_losses_say(
    rate: float, noise: float, most: int, count: int, adjacency: str
) -> None:
    """Monte Carlo with an interval of five deviations, coins drawn record by record."""
    rng, draws = np.random.default_rng(most), 200_000
    coins = (rng.uniform(size=(most, count, draws)) < rate).sum(axis=0)
    x = rng.normal(size=(count, draws)) + coins / noise
    j = np.arange(most + 1)
    weights = np.array([math.comb(most, i) * rate**i * (1 - rate) ** (most - i) for i in j])

    def log_density(at: Any) -> Any:
        return np.log(sum(w * np.exp(k / noise * at - (k / noise) ** 2 / 2) for k, w in zip(j, weights, strict=True)))

    loss = (log_density(x) - (log_density(-x) if adjacency == "replace-one" else 0.0)).sum(axis=0)
    composition = compose(entries(rate, noise, most, count), adjacency)  # type: ignore[arg-type]
    for epsilon in (0.3, 1.0):
        values = np.maximum(-np.expm1(epsilon - loss), 0.0)
        mean, spread = values.mean(), 5 * values.std() / math.sqrt(draws)
        found = find("pld").delta(composition, epsilon)
        assert found.lower is not None and found.lower <= mean + spread and mean - spread <= found.upper


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("adjacency", ["add/remove", "replace-one"])
def test_records_that_pull_in_any_directions_cost_no_more(seed: int, adjacency: str) -> None:
    """Three records of one owner in the plane, with vectors of norm at most 1; δ on a fine grid."""
    rng = np.random.default_rng(seed)
    rate, noise, most = rng.uniform(0.05, 0.7), rng.uniform(0.5, 2), 3

    def vectors() -> Any:
        angle, size = rng.uniform(0, 2 * np.pi, most), rng.uniform(0.3, 1, most)
        return np.stack([size * np.cos(angle), size * np.sin(angle)], axis=1) / noise

    grid = np.linspace(-14, 14, 561)
    x, y = np.meshgrid(grid, grid)

    def density(given: Any) -> Any:
        total = np.zeros_like(x)
        for coins in itertools.product((0, 1), repeat=most):
            a, b = np.array(coins) @ given
            total += rate ** sum(coins) * (1 - rate) ** (most - sum(coins)) * np.exp(-((x - a) ** 2 + (y - b) ** 2) / 2)
        return total * (grid[1] - grid[0]) ** 2 / (2 * np.pi)

    one, other = density(vectors()), density(vectors() if adjacency == "replace-one" else np.zeros((most, 2)))
    composition = compose(entries(rate, noise, most), adjacency)  # type: ignore[arg-type]
    for epsilon in (0.0, 0.2, 1.0):
        upper = find("pld").delta(composition, epsilon).upper
        for p, q in ((one, other), (other, one)):
            assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= upper + 1e-4


@pytest.mark.parametrize(
    ("rate", "noise", "most", "count"),
    [pytest.param(0.01, 1.0, 2, 100, marks=pytest.mark.slow), (0.05, 3.0, 4, 300)],  # half a minute of theirs
)
def test_dp_accounting_agrees_on_the_mixture_of_gaussians(rate: float, noise: float, most: int, count: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    weights = [math.comb(most, j) * rate**j * (1 - rate) ** (most - j) for j in range(most + 1)]
    event = dp.dp_event.MixtureOfGaussiansDpEvent(noise, list(range(most + 1)), weights)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    theirs = accountant.compose(dp.SelfComposedDpEvent(event, count)).get_epsilon(1e-5)
    ours = bounds(entries(rate, noise, most, count), "add/remove", delta=1e-5)
    assert ours.epsilon == pytest.approx(theirs, rel=5e-3)


def test_an_owner_of_k_records_costs_what_a_group_of_k_costs() -> None:
    query = GaussianSum(group="all", clip_norm=1.0, noise_std=4.0)
    single = [(Step(Poisson(rate=0.01), (query,)), 1000)]
    for accountant, size in itertools.product(("pld", "rdp"), (1, 3)):
        header = Header(unit="owner")
        owned = guarantee(entries(0.01, 4.0, 3, 1000), header, delta=1e-5, accountant=accountant, group=size)
        group = guarantee(single, Header(), delta=1e-5, accountant=accountant, group=3 * size)
        assert owned.epsilon == pytest.approx(group.epsilon, rel=1e-6)
    assert "owner-level" in str(owned) and "bounded by owner" in str(owned)


def test_sums_over_everyone_of_the_same_owners_are_charged_once_for_each_owner() -> None:
    query = GaussianSum(group="all", clip_norm=1.0, noise_std=5.0)
    mixed = [*entries(0.05, 3.0, 3, 200), (Step(Everyone(unit="owner"), (query,)), 4)]
    composition = compose(mixed, "add/remove")  # type: ignore[arg-type]
    both = groups.sides(composition, 1)
    assert both is not None and both[0].shift == pytest.approx(2 / 5.0)
    assert find("pld").epsilon(composition, 1e-5).upper > bounds(mixed[:1], "add/remove", delta=1e-5).epsilon


def test_owners_are_refused_by_name_where_there_is_no_proof() -> None:
    composition = compose(entries(0.01, 1.0, 3, 10), "add/remove")  # type: ignore[arg-type]
    with pytest.raises(Unproved, match="up to 3 records"):
        composition.parts  # noqa: B018
    ledger = Ledger(Header(unit="owner"))
    ledger.guard(Filter(AdaptiveBudget(epsilon=8.0, delta=1e-5)))
    with pytest.raises(Unproved, match="up to 3 records"):
        ledger.record(entries(0.01, 1.0, 3)[0][0])


def test_a_budget_ends_before_owners_pay_more_and_a_lease_does_not_cover_more_records() -> None:
    ledger = Ledger(Header(unit="owner"))
    ledger.guard(Filter(Budget(epsilon=1.0, delta=1e-5)))
    few, many = entries(0.05, 2.0, 1)[0][0], entries(0.05, 2.0, 20)[0][0]
    ledger.record(few)

    def train() -> None:
        for _ in range(1000):
            ledger.record(many)

    with pytest.raises(BudgetExceeded):
        train()
    assert bounds(list(ledger.entries), "add/remove", delta=1e-5).epsilon <= 1.0


def test_plan_and_command_line_know_owners(tmp_path: Any) -> None:
    solved = plan(records=1000, lot_size=10, steps=500, epsilon=2.0, delta=1e-5, records_per_owner=3)
    assert solved.guarantee.unit == "owner" and 1.99 <= solved.guarantee.epsilon <= 2.0
    noise = repr(solved.noise_multiplier)
    asked = ["account", "--sampling-rate", "0.01", "--noise-multiplier", noise, "--steps", "500", "--delta", "1e-5"]
    done = CliRunner().invoke(app, [*asked, "--records-per-owner", "3", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["unit"] == "owner" and facts["epsilon"] == pytest.approx(solved.guarantee.epsilon, rel=1e-6)
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, Header(unit="owner")) as ledger:
        for _ in range(500):
            ledger.record(entries(0.01, solved.noise_multiplier, 3)[0][0])
    read = json.loads(CliRunner().invoke(app, ["account", str(path), "--delta", "1e-5", "--json"]).output)
    assert read["epsilon"] == pytest.approx(facts["epsilon"], rel=1e-6)
    refused = CliRunner().invoke(app, ["account", str(path), "--delta", "1e-5", "--records-per-owner", "3"])
    assert refused.exit_code and "--records-per-owner is for plans" in str(refused.exception)
