"""The guarantee: what it says, how it prints, and what else it can be asked."""

import itertools
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from tacit.accounting import account, guarantee, plan
from tacit.accounting.guarantee import rounded_up
from tacit.accounting.pld import Pld
from tacit.ledger import AdaptiveBudget, Budget, Ledger
from tacit.ledger import events as ev


def gaussian(noise, rate=1.0, unit="example"):
    sampling = ev.Everyone(unit=unit) if rate == 1 else ev.Poisson(rate=rate, unit=unit)
    return ev.Step(sampling, (ev.GaussianSum(group="g", clip_norm=2.0, noise_std=2 * noise),))


def laplace(scale):
    return ev.Step(ev.Everyone(), (ev.LaplaceSum(group="l", clip_norm=1.0, scale=scale, dimension=1),))


def test_prints_one_honest_line():
    found = guarantee([(gaussian(4.0, 0.01, "user"), 10_000)], ev.Header(unit="user"), delta=1e-5)
    assert str(found) == "(ε = 0.947, δ = 1e-05) user-level, add/remove, Poisson, pld"
    assert found.epsilon_lower <= 0.9468668 <= found.epsilon
    assert "all checkpoints" in found.released


def test_units_are_not_mixed():
    with pytest.raises(ValueError, match="the step's unit is 'user'; this ledger's header says 'example'"):
        guarantee([(gaussian(4.0), 1), (gaussian(4.0, 0.1, "user"), 3)], ev.Header(), delta=1e-5)
    with pytest.raises(ValueError, match="the step's unit is 'example'; this ledger's header says 'user'"):
        plan(
            records=1000,
            lot_size=10,
            steps=5,
            noise_multiplier=2.0,
            delta=1e-5,
            also=[(gaussian(9.0, 1.0, "user"), 1), (gaussian(9.0), 1)],
        )
    promised = plan(
        records=1000, lot_size=10, steps=5, noise_multiplier=2.0, delta=1e-5, also=[(gaussian(9.0, 1.0, "user"), 1)]
    )
    assert promised.guarantee.unit == "user"


def test_the_long_form_says_what_is_assumed():
    ledger, budget = Ledger(), AdaptiveBudget(8.0, 1e-5)
    ledger.record(gaussian(4.0, 0.1))
    fixed, adaptive = account(ledger, delta=1e-5), account(ledger, delta=1e-5, budget=budget)
    assert str(fixed) == str(adaptive)
    assert adaptive.epsilon < 1
    for found in (fixed, adaptive):
        for fact in ("number of records is taken as public", "floating point", "all checkpoints"):
            assert fact in found.describe()
    assert "Where the end depended on what was released, what holds is the budget" in fixed.describe()
    assert "what holds is the adaptive budget, ε = 8.00 at δ = 1e-05, provided that it was fixed" in adaptive.describe()
    assert account(ledger, delta=1e-5, budget=Budget(8.0, 1e-5)) == fixed
    ledger.record(gaussian(0.1))  # more than the budget ever let through
    assert "adaptive budget" not in account(ledger, delta=1e-5, budget=budget).describe()


@pytest.mark.parametrize("steps", [[(gaussian(4.0, 0.01), 1000)], [(gaussian(2.0, 0.05), 50), (laplace(9.0), 3)]])
def test_the_curve_is_made_of_single_answers(steps):
    """All at once, on the lattice or without it, is as sound as one at a time and as close."""
    found = guarantee(steps, ev.Header(), delta=1e-5)
    epsilons = [0.0, 0.25 * found.epsilon, found.epsilon, 2 * found.epsilon, 1e4]
    for epsilon, value in zip(epsilons, found.curve(epsilons)):
        alone = Pld().delta(found.composition, epsilon)
        assert alone.lower <= value <= 1.05 * alone.upper + 1e-15


def test_the_attack_bound_does_not_account_again_and_again():
    found = guarantee([(gaussian(4.0, 0.01), 10_000), (gaussian(7.0), 1)], ev.Header(), delta=1e-5)
    start = time.process_time()
    found.attack_power([0.01, 0.001])
    assert time.process_time() - start < 1.0


def test_seeded_runs_are_marked():
    for secure in (True, False):
        line = str(guarantee([(gaussian(4.0), 1)], ev.Header(secure_randomness=secure), delta=1e-5))
        assert ("NOT PRIVATE: seeded randomness" in line) is not secure
        assert "\n" not in line


def test_names_every_sampling_policy_once():
    query = ev.GaussianSum(group="g", clip_norm=1.0, noise_std=2.0)
    steps = [
        (gaussian(3.0, 0.1), 2),
        (gaussian(4.0, 0.2), 2),
        (gaussian(9.0), 1),
        (ev.Step(ev.Shuffled(lots=10, epoch=0, records=100, assignment="independent"), (query,)), 3),
    ]
    found = guarantee(steps, ev.Header(), delta=1e-5)
    assert found.sampling == "Poisson + no sampling + shuffled (no amplification claimed)"
    assert guarantee([], ev.Header(), delta=1e-5).sampling == "nothing released"
    assert guarantee([], ev.Header(), delta=1e-5).epsilon == 0


def test_shuffling_costs_what_one_release_an_epoch_costs():
    query = ev.GaussianSum(group="g", clip_norm=1.0, noise_std=3.0)
    epochs = [
        (ev.Step(ev.Shuffled(lots=10, epoch=i, records=100, assignment="independent"), (query,)), 10) for i in range(4)
    ]
    shuffled = guarantee(epochs, ev.Header(), delta=1e-5)
    assert shuffled.epsilon == guarantee([(gaussian(3.0), 4)], ev.Header(), delta=1e-5).epsilon


@given(st.floats(1e-12, 1e12))
def test_numbers_are_never_printed_below_the_bound(value):
    text = rounded_up(value)
    assert float(text) >= value * (1 - 1e-15)
    assert float(text) <= value * 1.0101 or float(text) - value <= 0.01
    assert "e" not in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (1.24, "1.24"), (1.2400000001, "1.25"), (0.1, "0.100"), (999.999, "1000.00")]
)
def test_rounding_up(value, text):
    assert rounded_up(value) == text


def test_delta_is_rounded_up_too():
    found = guarantee([(gaussian(4.0), 1)], ev.Header(), epsilon=0.3)
    exact = norm.cdf(0.125 - 1.2) - math.exp(0.3) * norm.cdf(-0.125 - 1.2)
    assert found.delta == pytest.approx(exact, rel=1e-8)
    printed = float(str(found).split("δ = ")[1].split(")")[0])
    assert found.delta <= printed <= 1.01 * found.delta


def test_reading_changes_nothing():
    ledger = Ledger()
    for _ in range(5):
        ledger.record(gaussian(4.0, 0.1))
    before = ledger.digest, ledger.entries, len(ledger)
    first = account(ledger, delta=1e-5)
    first.curve([0.1, 1.0])
    first.attack_power([0.01])
    for name in ("pld", "rdp", "moments"):
        account(ledger, delta=1e-5, accountant=name)
        account(ledger, epsilon=1.0, accountant=name)
    assert (ledger.digest, ledger.entries, len(ledger)) == before
    assert account(ledger, delta=1e-5) == first
    with pytest.raises(AttributeError):
        first.epsilon = 0.0


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
def test_epsilon_and_delta_agree(accountant):
    entries = [(gaussian(4.0, 0.01), 10_000)]
    forth = guarantee(entries, ev.Header(), delta=1e-5, accountant=accountant)
    back = guarantee(entries, ev.Header(), epsilon=forth.epsilon, accountant=accountant)
    assert back.delta == pytest.approx(1e-5, rel=0.05)
    assert back.epsilon == forth.epsilon
    curve = forth.curve([0.0, 0.5, forth.epsilon, 2.0, 5.0])
    assert all(high >= low for high, low in itertools.pairwise(curve))
    assert curve[2] == back.delta


@pytest.mark.parametrize("shift", [0.3, 1.0, 3.0])
def test_attack_power_against_the_exact_trade_off(shift):
    """The best test of N(μ, 1) against N(0, 1) has power Φ(Φ⁻¹(α) + μ); no bound may be below it."""
    found = guarantee([(gaussian(1 / shift), 1)], ev.Header(), delta=1e-5)
    rates = [1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9]
    for rate, power in zip(rates, found.attack_power(rates)):
        exact = norm.cdf(norm.ppf(rate) + shift)
        assert exact * (1 - 1e-9) <= power <= 1.05 * exact
    assert found.attack_power([0.0, 1.0])[1] == 1.0
    assert found.gdp_estimate() == pytest.approx(shift, rel=1e-6)


def test_attack_power_is_never_below_chance():
    nothing = guarantee([], ev.Header(), delta=1e-5)
    assert nothing.attack_power([0.0, 0.2, 1.0]) == pytest.approx([0.0, 0.2, 1.0])
    much = guarantee([(gaussian(0.1), 100)], ev.Header(), delta=1e-5)
    assert much.attack_power([0.01]) == pytest.approx([1.0])


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_bad_false_positive_rate(rate):
    with pytest.raises(ValueError, match=r"false-positive rate is .*; it must be in \[0, 1\]\."):
        guarantee([(gaussian(1.0), 1)], ev.Header(), delta=1e-5).attack_power([rate])


def test_the_gaussian_estimate_needs_a_delta():
    pure = guarantee([(laplace(1.0), 1)], ev.Header(), epsilon=1.1)
    assert (pure.epsilon, pure.delta) == (1.1, 0.0)
    assert "δ = 0)" in str(pure)
    with pytest.raises(ValueError, match="delta is 0;"):
        pure.gdp_estimate()
    with pytest.raises(ValueError, match="delta is 1;"):
        guarantee([(gaussian(1.0), 10**6)], ev.Header(), epsilon=1.0).gdp_estimate()


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, math.inf, "1e-5"])
@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments", "strong"])
def test_bad_delta(delta, accountant):
    with pytest.raises(ValueError, match=r"^delta is .*; it must be in \(0, 1\)\.$"):
        guarantee([(gaussian(1.0, 0.1), 10)], ev.Header(), delta=delta, accountant=accountant)


@pytest.mark.parametrize("epsilon", [-1e-9, math.nan, math.inf, "1"])
def test_bad_epsilon(epsilon):
    with pytest.raises(ValueError, match=r"^epsilon is .*; it must be a finite number, at least 0\.$"):
        guarantee([(gaussian(1.0, 0.1), 10)], ev.Header(), epsilon=epsilon)


def test_one_question_at_a_time():
    for both in ({}, {"delta": 1e-5, "epsilon": 1.0}):
        with pytest.raises(ValueError, match="give either delta, to get epsilon, or epsilon, to get delta"):
            guarantee([(gaussian(1.0), 1)], ev.Header(), **both)
    with pytest.raises(ValueError, match="accountant is 'prv'; choose one of"):
        guarantee([(gaussian(1.0), 1)], ev.Header(), delta=1e-5, accountant="prv")


@pytest.mark.parametrize("group", [1, 3])
def test_shuffled_lots_have_no_certified_lower_bound(group):
    """A record is in one lot of several, nobody knows which: the cost without amplification is not attained."""
    query = ev.GaussianSum(group="sum", clip_norm=1.0, noise_std=1.0)
    sampling = ev.Shuffled(lots=50, epoch=0, records=1000, assignment="independent")
    found = guarantee([(ev.Step(sampling, (query,)), 50)], ev.Header(), delta=1e-5, group=group)
    assert found.epsilon_lower is None
    whole = ev.Shuffled(lots=1, epoch=0, records=1000, assignment="independent")
    assert guarantee([(ev.Step(whole, (query,)), 1)], ev.Header(), delta=1e-5).epsilon_lower is not None
