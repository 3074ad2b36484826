"""Sensitivity and amplification of correlated noise, against matrices, patterns and densities written out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import sqrtm, toeplitz
from scipy.stats import norm

from tacit.accounting import Unproved, guarantee
from tacit.accounting.correlated import cost_of_block, sampled_shift, sensitivity
from tacit.ledger import (
    AdaptiveBudget,
    Adjacency,
    CyclicPoisson,
    GaussianSum,
    Header,
    LaplaceSum,
    Ledger,
    Poisson,
    Step,
    from_json,
    to_json,
)

PARAMETERS: dict[str, list[tuple[float, ...]]] = {
    "banded": [(1.0,), (1.0, 0.6), (1.0, 0.5, 0.375), (1.0, 0.2, 0.4, 0.1)],
    "banded-inverse": [(1.0, -0.5), (1.0, -0.5, -0.125), (1.0, -0.3, -0.3), (1.0, -0.9)],
    "sparse-inverse": [(-0.5, 1.0), (-0.5, -0.25, 1.0, 4.0), (-0.6, -0.2, -0.1, 1.0, 2.0, 5.0), (-0.9, 2.0)],
    "buffered": [(0.5, 0.9), (0.2, 0.3, 0.95, 0.4), (0.1, 0.1, 0.1, 0.99, 0.7, 0.2), (1.0, 0.5)],
    "square-root": [()],
    "tree": [()],
}
SIZES = [(steps, groups) for steps in range(1, 9) for groups in range(1, steps + 2)]


def matrix(strategy: str, parameters: tuple[float, ...], steps: int) -> np.ndarray:
    """C, by definition."""
    if strategy == "square-root":
        return np.real(sqrtm(np.tri(steps)))
    if strategy == "tree":
        rows = [
            (first, first + size)
            for size in (1, 2, 4, 8)
            for first in range(0, steps, 2 * size)
            if first + size <= steps
        ]
        return np.array([[float(a <= i < b) for i in range(steps)] for a, b in rows])
    if strategy == "buffered":
        half = len(parameters) // 2
        pairs = list(zip(parameters[:half], parameters[half:], strict=True))
        column = [1.0] + [sum(w * r ** (i - 1) for w, r in pairs) for i in range(1, steps)]
    elif strategy == "sparse-inverse":
        half = len(parameters) // 2
        column = [1.0] + [
            sum(w for w, lag in zip(parameters[:half], parameters[half:], strict=True) if lag == i)
            for i in range(1, steps)
        ]
    else:
        column = [*parameters, *[0.0] * steps][:steps]
    found = toeplitz(column, np.zeros(steps))
    return np.linalg.inv(found) if strategy.endswith("inverse") else found


def vectors(steps: int, groups: int) -> Iterator[np.ndarray]:
    """Everything a record of one group can do at its extremes: take part or not, with either sign."""
    for first in range(min(groups, steps)):
        turns = list(range(first, steps, groups))
        for signs in itertools.product((-1.0, 0.0, 1.0), repeat=len(turns)):
            found = np.zeros(steps)
            found[turns] = signs
            yield found


@pytest.mark.parametrize("strategy", PARAMETERS)
def test_sensitivity_is_the_largest_over_all_participation_patterns(strategy: str) -> None:
    cases = [(parameters, *size) for parameters in PARAMETERS[strategy] for size in SIZES]
    if len(PARAMETERS[strategy]) == 1:
        cases += [((), steps, groups) for steps in (9, 10, 11) for groups in range(2, steps + 2)]
    assert len(cases) >= 60
    for parameters, steps, groups in cases:
        c = matrix(strategy, parameters, steps)
        largest = max(float(np.linalg.norm(c @ u)) for u in vectors(steps, groups))
        claimed = sensitivity(strategy, parameters, groups, steps)
        margin = 1e-5 if strategy == "square-root" else 1e-8  # its weights are rounded to single precision
        assert largest * (1 - 1e-12) <= claimed <= largest * (1 + margin), (parameters, steps, groups)


def test_mixed_signs_are_bounded_from_above() -> None:
    for parameters in [(1.0, -0.5), (1.0, 0.5, -0.4), (1.0, -0.2, -0.2, 0.3)]:
        for steps, groups in SIZES:
            c = matrix("banded", parameters, steps)
            largest = max(float(np.linalg.norm(c @ u)) for u in vectors(steps, groups))
            assert sensitivity("banded", parameters, groups, steps) >= largest * (1 - 1e-12)


def correlated(noise_std: float, strategy: str = "banded", parameters: tuple[float, ...] = (1.0, 0.5)) -> GaussianSum:
    return GaussianSum(
        group="gradients",
        clip_norm=1.0,
        noise_std=noise_std,
        noise="correlated",
        strategy=strategy,
        parameters=parameters,
    )


def cyclic(groups: int, rate: float, block: str = "a") -> CyclicPoisson:
    return CyclicPoisson(groups=groups, rate=rate, block=block)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("rate", "steps"), [(0.04, 1000), (0.2, 60), (0.01, 997)])
def test_amplified_epsilon_equals_that_of_the_reduction_to_poisson_sampling(
    adjacency: Adjacency, rate: float, steps: int
) -> None:
    parameters, groups = (1.0, 0.5, 0.375, 0.3125), 4
    step = Step(cyclic(groups, rate), (correlated(2.0, "banded", parameters),))
    column = math.sqrt(sum(c * c for c in parameters))
    plain = GaussianSum(group="gradients", clip_norm=column, noise_std=2.0)
    rounds = math.ceil(steps / groups)
    header = Header(adjacency=adjacency)
    for accountant in ("rdp", "pld") if steps == 997 else ("rdp",):
        ours = guarantee([(step, steps)], header, delta=1e-5, accountant=accountant).epsilon
        theirs = guarantee([(Step(Poisson(rate=rate), (plain,)), rounds)], header, delta=1e-5, accountant=accountant)
        assert ours == pytest.approx(theirs.epsilon, rel=1e-6)


def true_delta(c: np.ndarray, groups: int, rate: float, noise: float, epsilons: tuple[float, ...]) -> list[float]:
    """δ of a record of the first group whose vectors are all the same, by a sum over a grid.

    The law with the record is a mixture of Gaussians around sums of columns of C; what is orthogonal to all these
    columns tells nothing, so there are as many dimensions as turns.
    """
    columns = c[:, ::groups] / noise
    places = np.linalg.qr(columns)[1]
    places *= np.sign(np.diag(places))[:, None]
    turns = places.shape[1]
    axis = np.linspace(-7.5, 7.5 + np.abs(places).sum(), {1: 4000, 2: 400, 3: 110}[turns])
    cell, with_record, without = (axis[1] - axis[0]) ** turns, 0.0, density(axis, np.zeros(turns))
    for coins in itertools.product((0, 1), repeat=turns):
        chance = math.prod(rate if coin else 1 - rate for coin in coins)
        with_record = with_record + chance * density(axis, places @ coins)
    pairs = [(with_record, without), (without, with_record)]
    return [max(float(np.maximum(p - math.exp(each) * q, 0).sum()) * cell for p, q in pairs) for each in epsilons]


def density(axis: np.ndarray, mean: np.ndarray) -> np.ndarray:
    found = np.ones(())
    for each in mean:
        found = np.multiply.outer(found, norm.pdf(axis - each))
    return found


TAILED = [
    ("banded", (1.0, 0.1), 1, 2),
    ("banded", (1.0, 0.9), 1, 2),
    ("banded", (1.0, 0.5, 0.375), 1, 3),
    ("banded", (1.0, 0.5, 0.375, 0.3), 2, 4),
    ("banded-inverse", (1.0, -0.5), 2, 6),
    ("sparse-inverse", (-0.5, -0.25, 1.0, 4.0), 3, 9),
    ("buffered", (0.2, 0.3, 0.95, 0.4), 2, 5),
    ("square-root", (), 4, 8),
]


@pytest.mark.parametrize(("strategy", "parameters", "groups", "steps"), TAILED, ids=str)
def test_noise_that_reaches_beyond_the_next_turn_is_charged_enough(
    strategy: str, parameters: tuple[float, ...], groups: int, steps: int
) -> None:
    epsilons, c = (0.1, 0.5, 1.0, 2.0), matrix(strategy, parameters, steps)
    query = correlated(1.0, strategy, parameters)
    for rate, noise in [(0.05, 0.8), (0.3, 1.5), (0.6, 0.8), (0.6, 2.0)]:
        step = Step(cyclic(groups, rate), (replace(query, noise_std=noise),))
        found = true_delta(c, groups, rate, noise, epsilons)
        for epsilon, true in zip(epsilons, found, strict=True):
            claimed = guarantee([(step, steps)], Header(), epsilon=epsilon, accountant="pld").delta
            assert claimed >= true * (1 - 1e-3) - 1e-12, (rate, noise, epsilon)


def test_a_column_is_divided_at_each_of_the_groups_turns() -> None:
    column = np.real(sqrtm(np.tri(8)))[:, 0]
    norms = [np.linalg.norm(column[first : first + 3]) for first in (0, 3, 6)]
    assert sampled_shift("square-root", (), 3, 8) == pytest.approx(sum(norms), rel=1e-5)


def test_independent_sums_of_the_same_steps_are_charged_once_a_turn() -> None:
    loss = GaussianSum(group="loss", clip_norm=1.0, noise_std=10.0)
    step = Step(cyclic(2, 1.0), (correlated(2.0), loss))
    rounds, shift, rate = cost_of_block(step, 10)
    assert (rounds, rate) == (1, 1.0)
    assert shift == pytest.approx(math.sqrt(5 * 1.25 / 4 + 5 / 100), rel=1e-8)


def test_more_steps_never_cost_less() -> None:
    for strategy, parameters in [("buffered", (0.3, 0.9)), ("banded", (1.0, 0.5)), ("tree", ())]:
        query = correlated(4.0, strategy, parameters)
        costs = [
            guarantee([(Step(cyclic(4, 0.3), (query,)), steps)], Header(), delta=1e-5, accountant="rdp").epsilon
            for steps in (1, 5, 20, 40)
        ]
        assert costs == sorted(costs)


def test_a_second_block_costs_as_much_as_another_mechanism() -> None:
    query = correlated(4.0, "buffered", (0.3, 0.9))
    halves = [(Step(cyclic(10, 1.0, block), (query,)), 10) for block in ("a", "b")]
    shift = sensitivity("buffered", (0.3, 0.9), 10, 10) / 4
    plain = GaussianSum(group="g", clip_norm=shift * math.sqrt(2), noise_std=1.0)
    both = guarantee([(Step(Poisson(rate=1.0), (plain,)), 1)], Header(), delta=1e-5)
    assert guarantee(halves, Header(), delta=1e-5).epsilon == pytest.approx(both.epsilon, rel=1e-6)


def test_groups_of_records_in_a_sampled_block_get_the_general_rule() -> None:
    step = Step(cyclic(2, 0.1), (correlated(2.0),))
    one = guarantee([(step, 20)], Header(), epsilon=1.0)
    both = guarantee([(step, 20)], Header(), epsilon=2.0, group=2)
    assert both.delta == pytest.approx(one.delta * (math.exp(2) - 1) / (math.exp(1) - 1), rel=1e-3)


def test_unproved_combinations_are_refused_by_name() -> None:
    query, header = correlated(2.0), Header()

    def refused(*entries: tuple[Step, int]) -> str:
        with pytest.raises(Unproved) as caught:
            guarantee(entries, header, delta=1e-5)
        return str(caught.value)

    assert "cyclic sampling only" in refused((Step(Poisson(rate=0.1), (query,)), 1))
    other = correlated(3.0)
    assert "differ from each other" in refused((Step(cyclic(2, 0.1), (query,)), 1), (Step(cyclic(2, 0.1), (other,)), 1))
    laplace = LaplaceSum(group="other", clip_norm=1.0, scale=1.0, dimension=1)
    assert "LaplaceSum" in refused((Step(cyclic(2, 0.1), (laplace,)), 1))
    lattice = GaussianSum(group="g", clip_norm=1.0, noise_std=1.0, noise="discrete", lattice=2.0**-14)
    assert "discrete" in refused((Step(cyclic(2, 0.1), (lattice,)), 1))


def test_an_adaptive_budget_refuses_blocks() -> None:
    from tacit.accounting import Filter

    ledger = Ledger()
    ledger.guard(Filter(AdaptiveBudget(epsilon=1.0, delta=1e-5)))
    with pytest.raises(Unproved, match="adaptive budget"):
        ledger.record(Step(cyclic(2, 0.1), (correlated(2.0),)))


def _recorded(ledger: Ledger, step: Step) -> None:
    for _ in range(20):
        ledger.record(step)


def test_a_lease_of_a_budget_ends_with_the_block() -> None:
    from tacit.accounting import Filter
    from tacit.ledger import Budget, BudgetExceeded

    query = correlated(4.0, "buffered", (0.4, 0.95))
    whole = guarantee([(Step(cyclic(40, 1.0), (query,)), 40)], Header(), delta=1e-5).epsilon
    ledger = Ledger()
    ledger.guard(Filter(Budget(epsilon=whole, delta=1e-5)))
    for _ in range(20):
        ledger.record(Step(cyclic(40, 1.0), (query,)))
    with pytest.raises(BudgetExceeded):
        _recorded(ledger, Step(cyclic(40, 1.0, "b"), (query,)))
    assert guarantee(ledger.entries, Header(), delta=1e-5).epsilon <= whole


def test_events_survive_json_and_bad_ones_are_refused() -> None:
    step = Step(cyclic(2, 0.1), (correlated(2.0, "buffered", (0.3, 0.9)),))
    assert from_json(to_json(step)) == step
    with pytest.raises(ValueError, match="strategy"):
        correlated(1.0, "diagonal")
    with pytest.raises(ValueError, match="must be 1"):
        correlated(1.0, "banded", (2.0, 1.0))
    with pytest.raises(ValueError, match="decays"):
        correlated(1.0, "buffered", (0.3, 1.0))
    with pytest.raises(ValueError, match="only correlated"):
        GaussianSum(group="g", clip_norm=1.0, noise_std=1.0, strategy="tree")
