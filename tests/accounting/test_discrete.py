"""Discrete Gaussian noise: every claim lies above the divergences computed by summing over the lattice itself."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from tacit.accounting import ACCOUNTANTS, Composition, Filter, Unproved, account, compose, discrete, guarantee, plan
from tacit.accounting.composition import DiscreteGaussian, Gaussian, Policy, Term
from tacit.accounting.mixture import log_moments
from tacit.accounting.moments import Moments
from tacit.accounting.rdp import Rdp
from tacit.accounting.renyi import curve
from tacit.accounting.smoothing import smoothed_std
from tacit.ledger import (
    AdaptiveBudget,
    Adjacency,
    Budget,
    BudgetExceeded,
    Everyone,
    FixedSize,
    GaussianSum,
    Header,
    LaplaceSum,
    Ledger,
    Poisson,
    Sampling,
    Selection,
    Shuffled,
    Step,
)

Array = np.ndarray  # type: ignore[type-arg]
ORDERS = np.array([1.05, 1.3, 1.5, 2.0, 2.5, 3.0, 3.7, 5.0, 8.0, 16.0, 16.5, 30.0])
ROUNDING = 1e-9
REACH = 160  # the highest order looks at 30 times the shift


def noise(sigma: float, shift: int, reach: int) -> Array:
    """The logarithms of the probabilities of N_Z(shift, sigma²) on -reach, ..., reach."""
    x = np.arange(-reach, reach + 1)
    logs = -((x - shift) ** 2) / (2 * sigma**2)
    return np.asarray(logs - np.logaddexp.reduce(logs))


def lattice(sigmas: tuple[float, ...], shift: tuple[int, ...], reach: int = REACH) -> Array:
    """Of a vector of independent ones."""
    out = np.zeros(1)
    for sigma, each in zip(sigmas, shift, strict=True):
        out = np.add.outer(out, noise(sigma, each, reach)).ravel()
    return out


def mixed(rate: float, out: Array, inside: Array) -> Array:
    return np.logaddexp(math.log1p(-rate) + out, math.log(rate) + inside)


def divergence(p: Array, q: Array, order: float) -> float:
    """K(α) = log Σ p^α q^(1-α)."""
    return float(np.logaddexp.reduce(order * p + (1 - order) * q))


CASES = [
    ((0.6,), (1,)),
    ((1.0,), (1,)),
    ((1.0,), (2,)),
    ((2.5,), (1,)),
    ((4.0,), (3,)),
    ((1.0, 1.0), (1, 1)),
    ((1.5, 3.0), (1, -2)),
    ((0.8, 2.0), (0, 3)),
]


def multiplier(sigmas: tuple[float, ...], shift: tuple[int, ...]) -> float:
    return 1 / math.hypot(*(each / sigma for sigma, each in zip(sigmas, shift, strict=True)))


@pytest.mark.parametrize(("sigmas", "shift"), CASES)
def test_without_sampling_the_claim_is_an_upper_bound_and_exact_at_whole_orders(
    sigmas: tuple[float, ...], shift: tuple[int, ...]
) -> None:
    q, p = lattice(sigmas, (0,) * len(shift)), lattice(sigmas, shift)
    claim = discrete.whole(multiplier(sigmas, shift), ORDERS)
    for order, bound in zip(ORDERS, claim, strict=True):
        exact = divergence(p, q, float(order))
        assert exact <= bound * (1 + ROUNDING)
        if order == int(order):
            assert exact == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize(("sigmas", "shift"), CASES)
@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_sampled_both_directions_are_below_the_claim(
    sigmas: tuple[float, ...], shift: tuple[int, ...], rate: float
) -> None:
    q, p = lattice(sigmas, (0,) * len(shift)), lattice(sigmas, shift)
    m = mixed(rate, q, p)
    claim = discrete.sampled(rate, multiplier(sigmas, shift), ORDERS)
    for order, bound in zip(ORDERS, claim, strict=True):
        with_it, without = divergence(m, q, float(order)), divergence(q, m, float(order))
        assert without <= with_it + 1e-13
        assert with_it <= bound * (1 + ROUNDING) + 1e-13
        if order == int(order):
            assert with_it == pytest.approx(bound, rel=1e-5, abs=1e-12)


def test_the_gaussians_own_values_between_whole_orders_would_be_too_little() -> None:
    """The mistake that the chord avoids, here by 0.1 % of K, and how the test above would show it."""
    sigma, rate, order = 0.7, 0.05, 1.3
    q, p = lattice((sigma,), (0,)), lattice((sigma,), (1,))
    exact = divergence(mixed(rate, q, p), q, order)
    assert exact > float(log_moments(rate, sigma, np.array([order]))[0]) * 1.001
    assert exact < float(discrete.sampled(rate, sigma, np.array([order]))[0])


@pytest.mark.parametrize("mistake", ["sigma", "rounding", "rate"])
def test_a_mistake_would_be_noticed(mistake: str) -> None:
    sigma, rate, shift = 2.0, 0.2, 2
    q, p = lattice((sigma,), (0,)), lattice((sigma,), (shift,))
    exact = divergence(mixed(rate, q, p), q, 3.0)
    wrong = {
        "sigma": (rate, 1.01 * sigma / shift),  # the accountant told one per cent more noise
        "rounding": (rate, sigma / (shift - 1)),  # one step of rounding not charged
        "rate": (0.99 * rate, sigma / shift),
    }
    assert exact > float(discrete.sampled(*wrong[mistake], np.array([3.0]))[0]) * 1.005


@pytest.mark.parametrize("near", [1, 2])
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.8])
@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_one_record_replaced(near: int, rate: float, sigma: float) -> None:
    """Every a, b with |a - c|, |b - c| <= near contributions and |a - b| <= 2, c = 0; a contribution is two steps."""
    unit, orders = 2, ORDERS[ORDERS <= 8]
    claim = discrete.replaced(rate, sigma / unit, near, orders)
    places = [(-2, 0), (0, 0), (2, 0), (0, 2), (1, 1), (-4, 0), (4, 0), (0, 4), (2, 2)]
    centred = {place: lattice((sigma, sigma), place, reach=60) for place in places}
    sums = {place: mixed(rate, centred[0, 0], inside) for place, inside in centred.items()}
    worst = np.zeros(len(orders))
    for a, b in product(places, repeat=2):
        if max(math.hypot(*a), math.hypot(*b)) > near * unit or math.dist(a, b) > 2 * unit:
            continue
        found = np.array([divergence(sums[a], sums[b], float(order)) for order in orders])
        assert np.all(found <= claim * (1 + ROUNDING) + 1e-13)
        worst = np.maximum(worst, found)
    assert np.all(worst > 0)


# -- loss distributions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("s", "sigma"), [(0.4, 0.6), (0.5, 0.6), (0.6, 0.7)])
def test_rounded_gaussian_noise_is_discrete_gaussian_noise_but_for_the_factor_proved(s: float, sigma: float) -> None:
    """With an s small enough to see the factor; the integral by a sum of 2,000 points a unit."""
    eta = 2 * sum(math.exp(-2 * math.pi**2 * s**2 * k**2) for k in range(1, 20))
    tau = math.log((1 + eta) / (1 - eta))
    x = np.arange(-16_000, 16_001) / 2000
    y = np.arange(-40, 41)
    answers = -((y[:, None] - x) ** 2) / (2 * s**2)
    channel = np.exp(answers - np.logaddexp.reduce(answers, axis=0))
    weights = np.exp(-(x**2) / (2 * (sigma**2 - s**2)))
    near = np.abs(y) <= 3
    middle = np.abs(np.log(channel[near] @ weights / weights.sum()) - noise(sigma, 0, 40)[near])
    assert middle.max() <= tau * (1 + 1e-9)
    assert middle.max() > tau / 20


def exact_delta(p: Array, q: Array, epsilon: float, count: int) -> float:
    """δ of ``count`` independent uses, by listing all outcomes."""
    logs_p, logs_q = p, q
    for _ in range(count - 1):
        logs_p, logs_q = np.add.outer(logs_p, p).ravel(), np.add.outer(logs_q, q).ravel()
    return float(np.sum(np.maximum(np.exp(logs_p) - np.exp(epsilon + logs_q), 0.0)))


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rate", [0.1, 0.6, 1.0])
def test_delta_is_above_the_exact_one(accountant: str, count: int, rate: float) -> None:
    """A record that moves the sum by 33 steps, under noise of 36: the coarsest lattice the pld accountant takes."""
    sigma, shift = 36.0, 33
    query = GaussianSum(group="sum", clip_norm=float(shift), noise_std=sigma, noise="discrete", lattice=1.0)
    sampling: Sampling = Poisson(rate=rate) if rate < 1 else Everyone()
    reach = 8 * 36
    q, p = noise(sigma, 0, reach), noise(sigma, shift, reach)
    m = mixed(rate, q, p) if rate < 1 else p
    for epsilon in (0.0, 0.1, 0.5, 1.5):
        exact = max(exact_delta(m, q, epsilon, count), exact_delta(q, m, epsilon, count))
        found = guarantee([(Step(sampling, (query,)), count)], Header(), epsilon=epsilon, accountant=accountant)
        assert found.accountant == accountant
        assert found.delta >= exact
        if accountant == "pld" and exact > 1e-3:
            assert found.delta <= exact * 1.03 + 2e-4


def test_without_the_noise_lost_to_smoothing_a_loss_distribution_would_still_be_close() -> None:
    assert smoothed_std(1.0, 4.0, None) == 4.0
    assert smoothed_std(1.0, 64.0, 1.0) == pytest.approx(64 * math.sqrt(1 - 9 / 64**2), rel=1e-12)
    assert smoothed_std(1.0, 65.0, 1.0) < math.sqrt(65**2 - 9)  # between powers of two: more is taken, never less
    assert smoothed_std(1.0, 2.0**30, 1.0) == smoothed_std(1.0, 2.0**20, 1.0) * 2**10
    assert smoothed_std(1.0, 31.9, 1.0) == 0.0
    assert smoothed_std(2e15, 64.0, 1.0) == 0.0


# -- ledgers -----------------------------------------------------------------------------------------------------------


def steps(z: float, sampling: Sampling, *, step: float | None = 2.0**-16, count: int = 100) -> list[tuple[Step, int]]:
    kind = "gaussian" if step is None else "discrete"
    query = GaussianSum(group="gradients", clip_norm=1.0, noise_std=z, noise=kind, lattice=step)
    return [(Step(sampling, (query,)), count)]


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    "sampling",
    [
        Everyone(),
        Poisson(rate=0.02),
        FixedSize(size=20, records=1000),
        Shuffled(lots=200, epoch=0, records=9000, assignment="independent"),
    ],
    ids=lambda sampling: type(sampling).__name__,
)
def test_no_accountant_claims_less_than_for_gaussian_noise(adjacency: Adjacency, sampling: Sampling) -> None:
    """The Gaussian's are (nearly) exact, and what they say of whole orders and of large σ holds of both."""
    header = Header(adjacency=adjacency)
    if isinstance(sampling, FixedSize) and adjacency is Adjacency.ADD_REMOVE:
        with pytest.raises(Unproved, match="fixed-size sampling has no proof"):
            guarantee(steps(1.5, sampling), header, delta=1e-5)
        return
    for name in ("pld", "rdp"):
        ours = guarantee(steps(1.5, sampling), header, delta=1e-5, accountant=name)
        plain = guarantee(steps(1.5, sampling, step=None), header, delta=1e-5, accountant=name)
        assert ours.accountant == name
        assert ours.epsilon_lower is None
        assert plain.epsilon <= ours.epsilon <= plain.epsilon * (1.0001 if name == "pld" else 1.8)
        curve_ours, curve_plain = ours.curve([0.5, 2.0]), plain.curve([0.5, 2.0])
        assert all(one >= other * (1 - 1e-9) for one, other in zip(curve_ours, curve_plain, strict=True))


def test_a_coarse_lattice_is_accounted_by_rdp_and_the_guarantee_says_so() -> None:
    entries = steps(2.0, Poisson(rate=0.01), step=0.25)
    found = guarantee(entries, Header(), delta=1e-5)
    assert found.accountant == "rdp"
    assert "Poisson, rdp" in str(found)
    assert found.epsilon == guarantee(entries, Header(), delta=1e-5, accountant="rdp").epsilon
    assert found.curve([1.0]) == [guarantee(entries, Header(), epsilon=1.0).delta]
    assert "Discrete noise is exact" in found.describe()
    mixed_entries = [*entries, *steps(2.0, Poisson(rate=0.01), step=None)]
    assert guarantee(mixed_entries, Header(), delta=1e-5).accountant == "rdp"
    fine = guarantee(steps(2.0, Poisson(rate=0.01)), Header(), delta=1e-5)
    assert fine.accountant == "pld"
    assert fine.epsilon < found.epsilon


def test_accountants_refuse_discrete_noise_they_have_no_proof_for() -> None:
    term = Term(DiscreteGaussian(1.0, 0.0), Policy.POISSON, 0.1)
    composition = Composition(Adjacency.ADD_REMOVE, ((term, 3),))
    with pytest.raises(Unproved, match="strong composition is for one kind of step only: Gaussian noise"):
        ACCOUNTANTS["strong"].epsilon(composition, 1e-5)
    with pytest.raises(Unproved, match="no loss distribution for discrete Gaussian noise"):
        ACCOUNTANTS["pld"].method.epsilon(composition, 1e-5)
    with pytest.raises(Unproved, match="moments accountant has no proof for DiscreteGaussian with poisson"):
        Moments().epsilon(Composition(Adjacency.REPLACE_ONE, ((term, 3),)), 1e-5)
    odd = Step(Everyone(), (GaussianSum(group="a", clip_norm=1.0, noise_std=1.0, noise="uniform"),))
    with pytest.raises(Unproved, match="'uniform'; only 'gaussian' and 'discrete' have"):
        compose([(odd, 1)], Adjacency.ADD_REMOVE)
    laplace = LaplaceSum(group="b", clip_norm=1.0, scale=1.0, dimension=1)
    both = Step(Poisson(rate=0.1), (*steps(1.0, Everyone())[0][0].queries, laplace))
    with pytest.raises(Unproved, match="answered DiscreteGaussian and Laplace queries together"):
        compose([(both, 1)], Adjacency.ADD_REMOVE)


def test_several_groups_and_both_kinds_of_noise_are_one_sum() -> None:
    one = GaussianSum(group="a", clip_norm=1.0, noise_std=2.0, noise="discrete", lattice=2.0**-10)
    two = GaussianSum(group="b", clip_norm=3.0, noise_std=4.0)
    composition = compose([(Step(Poisson(rate=0.1), (one, two)), 5)], Adjacency.ADD_REMOVE)
    ((term, count),) = composition.terms
    assert isinstance(term.base, DiscreteGaussian)
    assert count == 5
    assert term.base.noise_multiplier == pytest.approx(1 / math.hypot(0.5, 0.75), rel=1e-8)
    assert term.base.noise_multiplier * (1 - 1e-6) < term.base.smoothed < term.base.noise_multiplier
    assert composition.smooth == Composition(
        Adjacency.ADD_REMOVE, ((Term(Gaussian(term.base.smoothed), Policy.POISSON, 0.1), 5),)
    )


def test_next_to_no_noise_promises_nothing() -> None:
    with pytest.raises(ValueError, match="no finite epsilon"):
        guarantee(steps(1e-7, Poisson(rate=0.1), step=2.0**-40), Header(), delta=1e-5)
    assert np.all(np.isinf(curve(Term(DiscreteGaussian(1e-8, 1e-8)), Adjacency.ADD_REMOVE, ORDERS)))


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
def test_noise_is_solved_for_and_the_budget_kept(accountant: str) -> None:
    found = plan(records=1000, lot_size=50, steps=200, epsilon=2.0, delta=1e-5, noise="discrete", accountant=accountant)
    assert 1.99 < found.guarantee.epsilon <= 2.0
    plain = plan(records=1000, lot_size=50, steps=200, epsilon=2.0, delta=1e-5, accountant=accountant)
    assert found.noise_multiplier > plain.noise_multiplier * (1 - 1e-3)
    with pytest.raises(ValueError, match="noise is 'laplace'"):
        plan(records=1000, lot_size=50, steps=2, epsilon=2.0, delta=1e-5, noise="laplace")


def _record_until_refused(ledger: Ledger, step: Step) -> None:
    for _ in range(2000):
        ledger.record(step)


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-5), AdaptiveBudget(1.0, 1e-5)])
@pytest.mark.parametrize("step", [2.0**-16, 0.25])
def test_a_budget_guards_a_ledger_with_discrete_noise(budget: Budget | AdaptiveBudget, step: float) -> None:
    ledger = Ledger()
    ledger.guard(Filter(budget))
    (entry,) = steps(2.0, Poisson(rate=0.02), step=step)
    with pytest.raises(BudgetExceeded):
        _record_until_refused(ledger, entry[0])
    assert len(ledger) > 10
    assert account(ledger, delta=1e-5).epsilon <= 1.0
    assert guarantee([(entry[0], 2 * len(ledger))], Header(), delta=1e-5).epsilon > 1.0


def test_tuning_over_runs_with_discrete_noise() -> None:
    kinds = {}
    for step in (None, 2.0**-16):
        chosen = Selection(
            group="tuning", trials="poisson", mean=5.0, candidate=tuple(steps(2.0, Poisson(rate=0.01), step=step))
        )
        kinds[step] = guarantee([(Step(Everyone(), (chosen,)), 1)], Header(), delta=1e-5, accountant="rdp")
    assert kinds[None].epsilon <= kinds[2.0**-16].epsilon <= 1.05 * kinds[None].epsilon
    assert kinds[2.0**-16].composition.discrete


def test_orders_given_by_hand_are_bounds_too() -> None:
    composition = compose(steps(1.0, Poisson(rate=0.05)), Adjacency.ADD_REMOVE)
    free = Rdp().epsilon(composition, 1e-5).upper
    assert Rdp(orders=(7.0,)).epsilon(composition, 1e-5).upper >= free
    assert Rdp(orders=(7.5,)).epsilon(composition, 1e-5).upper >= free
