"""Budgets enforced: what fits is admitted, what does not is refused and leaves no trace."""

import math

import pytest

from tacit.accounting import Filter, Unproved, account, compose, plan
from tacit.accounting.filter import filter_order, fits_adaptively, share
from tacit.accounting.pld import Pld
from tacit.accounting.rdp import Rdp, divergences
from tacit.ledger import AdaptiveBudget, Budget, BudgetExceeded, Ledger
from tacit.ledger import events as ev


def step(noise=1.0, rate=0.1, clip=1.0):
    sampling = ev.Poisson(rate=rate, records=1000) if rate < 1 else ev.Everyone()
    return ev.Step(sampling, (ev.GaussianSum(group="g", clip_norm=clip, noise_std=noise * clip),))


def lot(epoch, lots=100, noise=2.0):
    query = ev.GaussianSum(group="g", clip_norm=1.0, noise_std=noise)
    return ev.Step(ev.Shuffled(lots=lots, epoch=epoch, records=10_000, assignment="independent"), (query,))


def run(ledger, steps):
    """Record until refused; how many were admitted."""
    done = 0
    for item in steps:
        try:
            ledger.record(item)
        except BudgetExceeded:
            return done
        done += 1
    return done


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
def test_admits_exactly_as_many_steps_as_the_plan_solves_for(accountant):
    budget = Budget(1.5, 1e-5)
    planned = plan(
        records=1000, lot_size=100, noise_multiplier=4.0, epsilon=1.5, delta=1e-5, accountant=accountant
    ).steps
    ledger = Ledger()
    ledger.guard(Filter(budget, accountant=accountant))
    assert run(ledger, [step(4.0)] * (planned + 5)) == planned
    assert account(ledger, delta=1e-5, accountant=accountant).epsilon <= 1.5
    assert Filter(budget, accountant=accountant).remaining(Ledger(), step(4.0)) == planned


def test_a_refused_step_leaves_the_ledger_unchanged_and_a_smaller_one_may_follow():
    ledger = Ledger()
    ledger.guard(Filter(Budget(2.0, 1e-5)))
    ledger.record(step(4.0, 1.0))
    before = ledger.digest, ledger.entries, len(ledger)
    with pytest.raises(BudgetExceeded, match=r"over the budget of 2\. It was not taken: the 1 steps before it"):
        ledger.record(step(1.0, 1.0))
    assert (ledger.digest, ledger.entries, len(ledger)) == before
    ledger.record(step(20.0, 0.1))
    assert len(ledger) == 2


def test_interleaved_kinds_are_all_paid_for():
    """Each lease is for one kind; another kind in between must end it."""
    kinds = [step(4.0, 0.1), step(6.0, 0.2), step(20.0, 1.0)]
    ledger = Ledger()
    ledger.guard(Filter(Budget(1.0, 1e-5), accountant="rdp"))
    done = run(ledger, [kinds[i % 3] for i in range(2000)])
    assert 0 < done < 2000
    spent = Rdp().epsilon(compose(ledger.entries, ledger.header.adjacency), 1e-5).upper
    more = Rdp().epsilon(compose([*ledger.entries, (kinds[done % 3], 1)], ledger.header.adjacency), 1e-5).upper
    assert spent <= 1.0 < more


def test_a_clip_norm_that_changes_with_its_noise_costs_the_same():
    ledger = Ledger()
    ledger.guard(Filter(Budget(1.5, 1e-5), accountant="rdp"))
    plain = Filter(Budget(1.5, 1e-5), accountant="rdp").remaining(Ledger(), step(4.0))
    assert run(ledger, [step(4.0, clip=1 + i % 7 / 7) for i in range(plain + 5)]) in (plain - 1, plain)


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-5), AdaptiveBudget(1.0, 1e-5)])
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(lambda i: step(8 - i / 500), marks=pytest.mark.slow),
        lambda i: step(5 + i / 500),
        lambda i: step(5, 0.1 + i / 5e4),
    ],
)
def test_a_schedule_that_changes_every_step_is_admitted_to_the_last_step_with_few_accounts(budget, kinds):
    class Counted(Filter):
        accounts = 0

        def _fits(self, entries, header):
            self.accounts += 1
            return super()._fits(entries, header)

    ledger, counted = Ledger(), Counted(budget, accountant="rdp")
    ledger.guard(counted)
    done = run(ledger, [kinds(i) for i in range(3000)])
    assert 50 < done < 3000 and len(ledger.entries) == done
    plain = Filter(budget, accountant="rdp")
    assert plain._fits(ledger.entries, ledger.header)
    assert not plain._fits([*ledger.entries, (kinds(done), 1)], ledger.header)
    assert counted.accounts < 150


def test_steps_that_do_not_change_are_admitted_to_the_last_one_with_few_accounts():
    """A look comes first, then 300 equal steps, which the budget was planned for."""
    asked = []

    class Counted(Filter):
        def _fits(self, entries, header):
            asked.append(entries)
            return super()._fits(entries, header)

    look, steps = step(40.0, 1.0), [step(1.0, 0.05)] * 300
    most = Rdp().epsilon(compose([(look, 1), (steps[0], 300)], "add/remove"), 1e-5).upper
    ledger = Ledger()
    ledger.guard(Counted(Budget(most, 1e-5), accountant="rdp"))
    assert run(ledger, [look, *steps, steps[0]]) == 301
    assert len(asked) < 30


def test_a_lease_does_not_cover_a_costlier_step():
    ledger = Ledger()
    ledger.guard(Filter(Budget(1.0, 1e-5), accountant="rdp"))
    run(ledger, [step(8), step(7.9), step(7.8)])  # the lease is now for steps somewhat worse than these
    with pytest.raises(BudgetExceeded):
        ledger.record(step(0.5, 0.5))
    with pytest.raises(BudgetExceeded):
        ledger.record(step(4.0, 1.0))


def test_an_exact_lease_covers_equal_steps_only():
    """What costs less need not be computed as less: a lease without room must not cover it."""
    many = 1024
    most = Pld().epsilon(compose([(step(1.0, 0.001), many)], "add/remove"), 1e-5).upper
    ledger = Ledger()
    ledger.guard(Filter(Budget(most, 1e-5)))
    ledger.record(step(1.0, 0.001))
    run(ledger, [step(1.0 * (1 + 1e-6 * k), 0.001) for k in range(1, 40)])
    assert account(ledger, delta=1e-5).epsilon <= most


def test_an_accountant_without_a_proof_for_several_kinds_says_so_before_anything_is_recorded():
    ledger = Ledger()
    ledger.guard(Filter(Budget(50.0, 1e-5), accountant="strong"))
    ledger.record(step(4.0))
    with pytest.raises(Unproved):
        ledger.record(step(4.1))
    assert len(ledger) == 1


def test_two_filters_both_hold():
    ledger = Ledger()
    ledger.guard(Filter(Budget(1.0, 1e-5), accountant="rdp"))
    ledger.guard(Filter(Budget(0.5, 1e-5), accountant="rdp"))
    done = run(ledger, [step(4.0)] * 2000)
    assert done == Filter(Budget(0.5, 1e-5), accountant="rdp").remaining(Ledger(), step(4.0))
    # The other filter's lease ran ahead of a step that was never recorded.
    assert done + 1 == len(ledger) + 1


def test_a_reopened_ledger_continues_the_count(tmp_path):
    budget, total = Budget(0.5, 1e-5), Filter(Budget(0.5, 1e-5)).remaining(Ledger(), step(4.0))
    assert total > 20
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        ledger.guard(Filter(budget))
        assert run(ledger, [step(4.0)] * 10) == 10
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        ledger.guard(Filter(budget))
        assert Filter(budget).remaining(ledger, step(4.0)) == total - 10
        assert run(ledger, [step(4.0)] * total) == total - 10
    assert len(Ledger.load(tmp_path / "run.ledger")) == total


def test_every_shuffled_epoch_is_paid_for():
    """The lots of one epoch cost one release; a lease must not carry over into the next epoch."""
    one, two, three = (
        Pld().epsilon(compose([(lot(i), 1) for i in range(n)], "add/remove"), 1e-5).upper for n in (1, 2, 3)
    )
    assert one < two < three
    ledger = Ledger()
    ledger.guard(Filter(Budget((two + three) / 2, 1e-5)))
    assert run(ledger, [lot(epoch, 5000) for epoch in range(50)]) == 2
    ledger = Ledger()
    ledger.guard(Filter(Budget((two + three) / 2, 1e-5)))
    assert run(ledger, [lot(epoch) for epoch in range(5) for _ in range(100)]) == 200
    assert account(ledger, delta=1e-5).epsilon <= (two + three) / 2


def test_an_epoch_has_no_more_lots_than_it_was_cut_into():
    ledger = Ledger()
    ledger.guard(Filter(Budget(8.0, 1e-5)))
    assert Filter(Budget(8.0, 1e-5)).remaining(ledger, lot(0, lots=7)) == 7
    assert run(ledger, [lot(0, lots=7)] * 7) == 7
    with pytest.raises(Unproved, match="8 lots in the ledger but was cut into 7"):
        ledger.record(lot(0, lots=7))
    assert len(ledger) == 7


def test_remaining_stops_at_most():
    assert Filter(Budget(5.0, 1e-5), accountant="rdp").remaining(Ledger(), step(50.0, 0.001), most=1000) == 1000
    assert Filter(Budget(0.01, 1e-5)).remaining(Ledger(), step(1.0, 1.0)) == 0


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
@pytest.mark.parametrize("first", [step(50.0, 1.0), step(0.7, 0.01), step(4.0, 0.1), step(20.0, 0.001)])
def test_the_filters_order_admits_most_steps_like_the_first(epsilon, delta, first):
    budget, like = AdaptiveBudget(epsilon, delta), compose([(first, 1)], ev.Adjacency.ADD_REMOVE)

    def admitted(order):
        return share(budget, order) / float(divergences(like, (order,))[0])

    best = max(admitted(1 + math.exp(x / 10)) for x in range(-50, 90))
    assert admitted(filter_order(budget, like)) >= 0.97 * best


def test_the_order_depends_on_the_first_step_alone():
    """What comes later may depend on releases, and so may not move the order."""
    budget, first = AdaptiveBudget(2.0, 1e-5), step(0.7, 0.01)
    order = filter_order(budget, compose([(first, 1)], ev.Adjacency.ADD_REMOVE))
    most = share(budget, order)
    one = {s: float(divergences(compose([(s, 1)], ev.Adjacency.ADD_REMOVE), (order,))[0]) for s in (first, step(9.0))}
    for others in (5, 50):
        entries = [(first, 3), (step(9.0), others)]
        fits = fits_adaptively(entries, ev.Adjacency.ADD_REMOVE, budget)
        assert fits is (3 * one[first] + others * one[step(9.0)] <= most)


@pytest.mark.parametrize("budget", [AdaptiveBudget(0.3, 1e-6), AdaptiveBudget(2.0, 1e-5), AdaptiveBudget(8.0, 1e-3)])
@pytest.mark.parametrize(("noise", "rate"), [(4.0, 0.1), (2.0, 1.0), (10.0, 0.01), (0.7, 0.001)])
def test_an_adaptive_budget_admits_no_more_steps_than_its_epsilon_allows(budget, noise, rate):
    """With fixed parameters an adaptive budget admits no more than the plain one, and not absurdly less."""
    scale = noise if rate < 1 else noise * 10
    count = Filter(budget).remaining(Ledger(), step(scale, rate))
    entries = [(step(scale, rate), count)] if count else []
    assert fits_adaptively(entries, ev.Adjacency.ADD_REMOVE, budget)
    assert not fits_adaptively([(step(scale, rate), count + 1)], ev.Adjacency.ADD_REMOVE, budget)
    truth = Pld().epsilon(compose(entries, ev.Adjacency.ADD_REMOVE), budget.delta)
    assert truth.upper <= budget.epsilon
    fewer = Filter(Budget(budget.epsilon, budget.delta), accountant="rdp").remaining(Ledger(), step(scale, rate))
    assert count >= 0.9 * fewer - 1


def test_an_adaptive_budget_ignores_the_accountant_by_proof():
    """Only the Rényi filter has a proof for parameters chosen on the way; the accountant's name changes nothing."""
    budget = AdaptiveBudget(1.0, 1e-5)
    counts = {
        name: Filter(budget, accountant=name).remaining(Ledger(), step(4.0)) for name in ("pld", "rdp", "moments")
    }
    assert len(set(counts.values())) == 1
    assert counts["pld"] < Filter(Budget(1.0, 1e-5)).remaining(Ledger(), step(4.0))


def test_a_small_adaptive_budget_is_answered():
    """The order grows as the budget shrinks."""
    assert filter_order(AdaptiveBudget(1e-3, 1e-5), compose([(step(1e5, 1.0), 1)], ev.Adjacency.ADD_REMOVE)) > 5e3
    assert Filter(AdaptiveBudget(1e-16, 1e-5)).remaining(Ledger(), step(1.0, 0.01), most=1000) == 0
    assert Filter(AdaptiveBudget(1e-3, 1e-5)).remaining(Ledger(), step(1e5, 0.01), most=1000) == 1000
    assert Filter(AdaptiveBudget(1e-3, 1e-5)).remaining(Ledger(), step(1.0, 0.01), most=1000) == 0


def test_an_unknown_accountant_is_refused_by_name():
    with pytest.raises(ValueError, match="accountant is 'gdp'; choose one of pld, rdp, moments, strong"):
        Filter(Budget(1.0, 1e-5), accountant="gdp")
