"""Fitted strategies come close to the best that is known for prefix sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.accounting.correlated import sampled_shift, sensitivity
from tacit.ledger.correlation import Correlation, Fitted, check_strategy, coefficients, inverse_coefficients
from tacit.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    SparseInverse,
    SquareRoot,
    TreeAggregation,
)
from tacit.mechanisms.strategies import Objective, prefix_sum_error


def error(fitted: Fitted, steps: int, objective: Objective) -> float:
    """Of prefix sums at unit sensitivity, every record taking part once."""
    return prefix_sum_error(fitted, steps, objective) * sensitivity(*fitted, steps, steps)


def dense_optimum(steps: int) -> float:
    """The least root mean squared error of any factorisation, by its dual (Denisov et al. 2022): a lower bound always.

    For every v > 0 with sum n, |B|_F |C|_(1->2) >= tr((V^1/2 A^T A V^1/2)^1/2) / sqrt(n).
    """
    prefix = np.tri(steps)
    weights = np.ones(steps)
    for _ in range(30):
        root = np.sqrt(weights)
        values, vectors = np.linalg.eigh(root[:, None] * (prefix.T @ prefix) * root)
        values = np.sqrt(np.maximum(values, 0))
        weights = np.einsum("ij,j,ij->i", vectors, values, vectors)
        weights *= steps / weights.sum()
    root = np.sqrt(weights)
    nuclear = np.sqrt(np.maximum(np.linalg.eigvalsh(root[:, None] * (prefix.T @ prefix) * root), 0)).sum()
    return float(nuclear / steps)


@pytest.mark.parametrize("steps", [1000, 2000])
def test_buffers_come_within_a_hundredth_of_the_published_optimum(steps: int) -> None:
    """The least largest error of a Toeplitz factorisation: sum of c_i² of the square root, close to its asymptote."""
    squares = [1.0]
    for i in range(1, steps):
        squares.append(squares[-1] * ((2 * i - 1) / (2 * i)) ** 2)
    optimum = math.fsum(squares)
    assert optimum == pytest.approx((math.log(steps) + np.euler_gamma + 4 * math.log(2)) / math.pi, rel=1e-3)
    assert error(SquareRoot().fitted(steps, steps, 1.0), steps, "max") == pytest.approx(optimum, rel=2e-5)
    for buffers in (3, 4):
        fitted = BufferedToeplitz(buffers=buffers, objective="max").fitted(steps, steps, 1.0)
        assert error(fitted, steps, "max") == pytest.approx(optimum, rel=0.01)
        fitted = BufferedToeplitz(buffers=buffers).fitted(steps, steps, 1.0)
        toeplitz = BandedToeplitz(bands=1000, groups=1000).fitted(steps, steps, 1.0)
        assert error(fitted, steps, "mean") <= error(toeplitz, steps, "mean") * 1.01


def test_the_mean_error_lies_within_four_hundredths_of_any_factorisation() -> None:
    steps = 128
    least = dense_optimum(steps)
    for strategy in (BandedToeplitz(bands=128, groups=128), BufferedToeplitz(buffers=4)):
        found = error(strategy.fitted(steps, steps, 1.0), steps, "mean")
        assert least <= found <= 1.04 * least
    assert error(TreeAggregation().fitted(steps, steps, 1.0), steps, "mean") > 1.5 * least


@pytest.mark.parametrize("steps", [1000, 2000])
def test_a_few_far_lags_come_close_to_the_best_toeplitz_matrix(steps: int) -> None:
    best = error(BufferedToeplitz(buffers=4).fitted(steps, steps, 1.0), steps, "mean")
    for growth, streams, above in ((4, 7, 1.025), (2, 12, 1.01)):
        strategy, parameters = SparseInverse(growth=growth).fitted(steps, steps, 1.0)
        assert len(parameters) // 2 + 1 <= streams
        assert error((strategy, parameters), steps, "mean") <= above * best
    same = error(BandedInverse(bands=12).fitted(steps, steps, 1.0), steps, "mean")
    assert same > 1.1 * error(SparseInverse(growth=2).fitted(steps, steps, 1.0), steps, "mean")


@pytest.mark.parametrize(("groups", "rate"), [(100, 1.0), (25, 1.0), (10, 0.1)])
@pytest.mark.parametrize("strategy", [SparseInverse(), SparseInverse(growth=2), BandedInverse(bands=4)], ids=str)
def test_no_change_of_a_coefficient_makes_the_fit_of_an_inverse_better(
    strategy: SparseInverse | BandedInverse, groups: int, rate: float
) -> None:
    def value(name: str, parameters: tuple[float, ...]) -> float:
        shift = (sensitivity if rate > 0.5 else sampled_shift)(name, parameters, groups, 100)
        return prefix_sum_error((name, parameters), 100) * shift

    name, best = strategy.fitted(100, groups, rate)
    free = range(1, len(best)) if name == "banded-inverse" else range(len(best) // 2)
    for place in free:
        for change in (-3e-3, 3e-3):
            other = (*best[:place], best[place] + change, *best[place + 1 :])
            assert value(name, other) >= value(name, best) * (1 - 1e-7)


def test_more_bands_leave_less_error() -> None:
    for strategy in (BandedToeplitz, BandedInverse):
        errors = [error(strategy(bands=bands).fitted(200, 200, 1.0), 200, "mean") for bands in (1, 2, 4, 8, 16)]
        assert errors == sorted(errors, reverse=True)
    one = BandedToeplitz(bands=1).fitted(200, 1, 0.1)
    assert one == ("banded", (1.0,))
    assert error(one, 200, "mean") == pytest.approx(math.sqrt(201 / 2), rel=1e-6)


def test_no_change_of_a_coefficient_makes_the_banded_fit_better() -> None:
    _, best = BandedToeplitz(bands=5).fitted(100, 5, 0.5)
    least = prefix_sum_error(("banded", best), 100) * float(np.linalg.norm(best))
    for place in range(1, 5):
        for change in (-1e-3, 1e-3):
            other = (*best[:place], best[place] + change, *best[place + 1 :])
            assert prefix_sum_error(("banded", other), 100) * float(np.linalg.norm(other)) >= least


@pytest.mark.parametrize(("groups", "share"), [(2, 1.04), (4, 1.04), (8, 1.06), (16, 1.08), (32, 1.09)])
def test_few_lags_come_close_to_as_many_bands_as_groups(groups: int, share: float) -> None:
    """At the same amplification: what a key of 32 bytes gives up of the error that copies of the model bring."""
    steps = 1000

    def cost(fitted: Fitted) -> float:
        return prefix_sum_error(fitted, steps) * sampled_shift(*fitted, groups, steps)

    bands = cost(BandedToeplitz(bands=groups).fitted(steps, groups, 0.1))
    assert cost(SparseInverse(groups=groups).fitted(steps, groups, 0.1)) < share * bands
    assert cost(SparseInverse(groups=groups, growth=2).fitted(steps, groups, 0.1)) < share * bands


def test_coefficients_and_inverse_coefficients_multiply_to_one() -> None:
    strategies: list[Correlation] = [
        BandedToeplitz(bands=4),
        BandedInverse(bands=4),
        SparseInverse(growth=3),
        BufferedToeplitz(buffers=3),
        SquareRoot(),
    ]
    for strategy in strategies:
        fitted = strategy.fitted(50, 50, 1.0)
        product = np.convolve(coefficients(*fitted, 50), inverse_coefficients(*fitted, 50))[:50]
        assert np.allclose(product, np.eye(1, 50)[0], atol=1e-12)


def test_the_prefix_sum_error_is_that_of_the_matrices() -> None:
    steps = 20
    for strategy in (
        BandedToeplitz(bands=4),
        BandedInverse(bands=4),
        SparseInverse(),
        BufferedToeplitz(buffers=3),
        SquareRoot(),
    ):
        fitted = strategy.fitted(steps, steps, 1.0)
        d = inverse_coefficients(*fitted, steps)
        rows = np.tri(steps) @ np.array([[d[t - i] if t >= i else 0.0 for i in range(steps)] for t in range(steps)])
        assert prefix_sum_error(fitted, steps) == pytest.approx(np.linalg.norm(rows) / math.sqrt(steps), rel=1e-9)
        assert prefix_sum_error(fitted, steps, "max") == pytest.approx(np.linalg.norm(rows[-1]), rel=1e-9)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="bands is 0"):
        BandedToeplitz(bands=0)
    with pytest.raises(ValueError, match="at least the number of bands"):
        BandedToeplitz(bands=4, groups=3)
    with pytest.raises(ValueError, match="growth is 1"):
        SparseInverse(growth=1)
    for parameters in [(-0.5, 1.5), (-0.5, 0.0), (-0.5, -0.1, 2.0, 1.0), (-0.5,)]:
        with pytest.raises(ValueError, match="as many lags"):
            check_strategy("sparse-inverse", parameters)
    with pytest.raises(ValueError, match="at most 10 groups"):
        BandedToeplitz(bands=11).choices(1000, 100)


@pytest.mark.parametrize(
    "strategy", [BandedToeplitz(bands=4), BandedInverse(bands=4), SparseInverse(), BufferedToeplitz(buffers=2)]
)
def test_the_ledger_has_the_numbers_that_the_noise_is_made_with(strategy: Correlation) -> None:
    """Noise is added up in single precision; a decay that is rounded there and not in the ledger is another one."""
    _, parameters = strategy.fitted(400, 400, 1.0)
    assert parameters == tuple(float(np.float32(each)) for each in parameters)


@pytest.mark.parametrize("groups", [100, 2000])
def test_the_square_root_is_charged_with_its_weights_rounded(groups: int) -> None:
    steps = 2000
    weights = inverse_coefficients("square-root", (), steps)
    least = np.where(weights > 0, weights, weights * (1 + 2.0**-24))  # all rounded so that C is largest
    column = coefficients("banded-inverse", tuple(least), steps)
    total = np.sum([np.pad(column, (first, 0))[:steps] for first in range(0, steps, groups)], axis=0)
    assert np.linalg.norm(total) <= sensitivity("square-root", (), groups, steps)
    norms = [np.linalg.norm(column[first : first + groups]) for first in range(0, steps, groups)]
    assert sum(norms) <= sampled_shift("square-root", (), groups, steps)
