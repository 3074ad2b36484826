"""The choice: charged before the first run, no run beyond what is declared, nothing of the losers left."""

import gc
import itertools
import math
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from scipy import stats

import tacit
from tacit.accounting import Composition
from tacit.accounting.composition import Gaussian, Laplace, Policy, Term
from tacit.accounting.selected import dominates
from tacit.ledger import Adjacency, Budget, BudgetExceeded, Everyone, GaussianSum, Header, Ledger, Poisson, Step
from tacit.randomness import SeededSource
from tacit.tuning import NoTrial, PoissonTrials, TrialFailed, TrialOverrun, TruncatedNegativeBinomial, choose, try_all
from tacit.tuning.cover import covers

FEW = TruncatedNegativeBinomial.of_mean(5, eta=1.0)


class Fixed(PoissonTrials):
    """K as the test wants it."""

    def draw(self, source):
        return int(self.mean)


def fixed(count):
    return Fixed(mean=float(count))


# -- the mechanism --------------------------------


@pytest.mark.parametrize("trials", [FEW, TruncatedNegativeBinomial(eta=0.0, gamma=0.2), PoissonTrials(mean=3.0)])
def test_the_outcome_has_the_distribution_of_the_theorem(trials, base, step):
    """Settings of equal chance, each with outcomes of known chances: the best of K follows E[F^K]. Fails 1 in 10^9."""
    run, draws = {"a": [0.7, 0.2, 0.1], "b": [0.2, 0.75, 0.05]}, 800
    generator, source = np.random.default_rng(3), SeededSource(8)

    def trial(setting, ledger):
        ledger.record(step)
        score = generator.choice(3, p=run[setting])
        return score, (setting, score)

    counts = dict.fromkeys([(setting, score) for setting in run for score in range(3)], 0)
    nothing = 0
    for _ in range(draws):
        ledger = Ledger(Header(secure_randomness=False))
        try:
            counts[choose(["a", "b"], trial, trials=trials, base=base, ledger=ledger, source=source).output] += 1
        except NoTrial:
            nothing += 1
    if isinstance(trials, PoissonTrials):
        chances = stats.poisson.pmf(np.arange(60), trials.mean)
    else:
        k = np.arange(1, 400)
        weights = (1 - trials.gamma) ** k / (k if trials.eta == 0 else 1)
        chances = np.concatenate([[0.0], weights / weights.sum()])
    single = np.mean([run["a"], run["b"]], axis=0)
    reach = [float(np.sum(chances * F ** np.arange(len(chances)))) for F in [0.0, *np.cumsum(single)]]
    observed, expected = [nothing] * bool(reach[0]), [draws * reach[0]] * bool(reach[0])
    for (setting, score), seen in counts.items():
        observed.append(seen)
        expected.append(draws * (reach[score + 1] - reach[score]) * run[setting][score] / (2 * single[score]))
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    assert statistic <= stats.chi2.isf(1e-9, len(observed) - 1)


def test_the_best_is_returned_and_what_is_not_a_number_comes_last(ledger, seeded, base, step):
    scores = iter([0.2, math.nan, torch.tensor(0.9, dtype=torch.float64), 0.9, 0.1])

    def trial(setting, own):
        own.record(step)
        score = next(scores)
        return score, score

    found = choose([None], trial, trials=fixed(5), base=base, ledger=ledger, source=seeded)
    assert isinstance(found.output, torch.Tensor)  # the first among equals
    assert found.score == pytest.approx(0.9)
    scores = iter([math.nan, -5.0])
    assert choose([None], trial, trials=fixed(2), base=base, ledger=ledger, source=seeded).score == -5.0


def test_settings_are_drawn_anew_for_each_run(ledger, seeded, base, step):
    tried = []

    def trial(setting, own):
        own.record(step)
        tried.append(setting)
        return 0, None

    choose(range(3), trial, trials=fixed(300), base=base, ledger=ledger, source=seeded)
    counts = [tried.count(setting) for setting in range(3)]
    assert sum(counts) == 300
    assert sum((count - 100) ** 2 / 100 for count in counts) <= stats.chi2.isf(1e-9, 2)
    assert any(first == second for first, second in itertools.pairwise(tried))


# -- what is charged --------------------------------


def test_charged_once_before_the_first_run(ledger, seeded, base, step):
    seen = []

    def trial(setting, own):
        seen.append(len(ledger))
        own.record(step)
        own.record(step)
        return 0, None

    choose(["a"], trial, trials=fixed(4), base=base, ledger=ledger, source=seeded)
    assert seen == [1, 1, 1, 1] and len(ledger) == 1
    (entry, count) = ledger.entries[0]
    assert entry == Step(Everyone(), (fixed(4).event(base),)) and count == 1
    one = tacit.account(_of(base), delta=1e-5, accountant="rdp").epsilon
    assert tacit.account(ledger, delta=1e-5, accountant="rdp").epsilon > one


def _of(entries):
    ledger = Ledger()
    for step, count in entries:
        for _ in range(count):
            ledger.record(step)
    return ledger


def test_a_failed_run_leaves_the_charge_and_releases_nothing(ledger, seeded, base, step):
    def trial(setting, own):
        own.record(step)
        if trial.left == 0:
            raise ZeroDivisionError("something about the records")
        trial.left -= 1
        return 1, "a model"

    trial.left = 2
    with pytest.raises(TrialFailed, match=r"A trial failed \(ZeroDivisionError\); nothing is released") as caught:
        choose(["a"], trial, trials=fixed(5), base=base, ledger=ledger, source=seeded)
    assert "records" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert len(ledger) == 1


KILLED = """
import sys, time
from tacit.ledger import *
from tacit.tuning import *
step = Step(Everyone(), (GaussianSum(group="g", clip_norm=1.0, noise_std=4.0),))
def trial(setting, own):
    own.record(step)
    print("running", flush=True)
    time.sleep(60)
choose(["a"], trial, trials=TruncatedNegativeBinomial.of_mean(5), base=((step, 3),), ledger=Ledger.open(sys.argv[1]))
"""


def test_killed_in_the_middle_of_a_run(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "running\n"
        os.kill(child.pid, signal.SIGKILL)
    held = Ledger.load(path)
    assert len(held) == 1
    query = held.entries[0][0].queries[0]
    assert query.candidate[0][1] == 3 and query.trials == "truncated-negative-binomial"


def test_a_budget_that_cannot_pay_refuses_before_anything_runs(ledger, seeded, base):
    def trial(setting, own):
        raise AssertionError("never run")

    with pytest.raises(BudgetExceeded):
        choose(["a"], trial, trials=FEW, base=base, ledger=ledger, budget=Budget(0.5, 1e-5), source=seeded)
    assert len(ledger) == 0


def test_no_run_at_all(ledger, seeded, base):
    with pytest.raises(NoTrial, match="drawn as 0"):
        choose(["a"], None, trials=PoissonTrials(mean=1e-9), base=base, ledger=ledger, source=seeded)
    assert len(ledger) == 1


# -- what a run may do --------------------------------


def gaussian(noise, rate=None, group="g"):
    sampling = Everyone() if rate is None else Poisson(rate=rate)
    return Step(sampling, (GaussianSum(group=group, clip_norm=1.0, noise_std=noise),))


@pytest.mark.parametrize(
    "steps",
    [
        [gaussian(4.0)] * 3,  # one too many
        [gaussian(3.99)],  # too little noise
        [Step(Everyone(), (gaussian(4.0).queries[0], gaussian(4.0, group="h").queries[0]))],  # one more query
    ],
)
@pytest.mark.parametrize("swallow", [False, True])
def test_a_run_that_does_more_than_declared(ledger, seeded, base, steps, swallow):
    taken = []

    def trial(setting, own):
        for step in steps:
            try:
                own.record(step)
                taken.append(step)
            except TrialOverrun:
                if not swallow:
                    raise
        return 1, "a model"

    with pytest.raises(TrialOverrun):
        choose(["a"], trial, trials=fixed(1), base=base, ledger=ledger, source=seeded)
    assert len(taken) == len(steps) - 1
    assert len(ledger) == 1


def test_a_run_that_leaves_its_ledger_out(ledger, seeded, base):
    with pytest.raises(TrialFailed, match="wrote nothing to the ledger"):
        choose(["a"], lambda *_: (1, None), trials=fixed(1), base=base, ledger=ledger, source=seeded)


def test_a_run_cannot_go_on_when_it_is_over(ledger, seeded, base, step):
    kept = []

    def trial(setting, own):
        own.record(step)
        kept.append(own)
        return 1, None

    choose(["a"], trial, trials=fixed(1), base=base, ledger=ledger, source=seeded)
    with pytest.raises(tacit.ledger.LedgerUnavailable):
        kept[0].record(step)


def test_a_run_may_do_less(ledger, seeded, step):
    base = ((gaussian(2.0, 0.1), 10), (gaussian(4.0), 1))
    done = [gaussian(2.0, 0.1), gaussian(3.0, 0.05), gaussian(5.0, 0.1), gaussian(9.0), gaussian(2.0, 0.1)]

    def trial(setting, own):
        for step in done:
            own.record(step)
        return 1, "ok"

    assert choose(["a"], trial, trials=fixed(1), base=base, ledger=ledger, source=seeded).output == "ok"


def term(noise, policy=Policy.ALWAYS, rate=1.0):
    return Term(Gaussian(noise), policy, rate)


def test_dominance():
    poisson, sized = Policy.POISSON, Policy.FIXED_SIZE
    assert dominates(term(2.0), term(2.0)) and dominates(term(2.0), term(3.0)) and not dominates(term(3.0), term(2.0))
    assert dominates(term(2.0), term(2.0, poisson, 0.5)) and not dominates(term(2.0, poisson, 0.5), term(2.0))
    assert dominates(term(2.0, poisson, 0.5), term(2.0, poisson, 0.4))
    assert not dominates(term(2.0, poisson, 0.4), term(2.0, poisson, 0.5))
    assert not dominates(term(2.0, poisson, 0.5), term(2.0, sized, 0.4))
    assert not dominates(term(2.0, sized, 0.5), term(2.0, sized, 0.4)) and dominates(
        term(2.0, sized, 0.5), term(2.5, sized, 0.5)
    )
    assert not dominates(Term(Laplace(2.0, 1)), Term(Laplace(3.0, 1))) and not dominates(
        term(2.0), Term(Laplace(9.0, 1))
    )


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_covered_composition_costs_no_more_than_its_cover(adjacency):
    """Random pairs of compositions: wherever covers says yes, the Rényi accountant agrees at every order."""
    from tacit.accounting.rdp import Rdp

    generator, agreed, refused = np.random.default_rng(2), 0, 0

    def composition():
        parts = {}
        for _ in range(int(generator.integers(1, 4))):
            rate = float(generator.choice([0.01, 0.1, 1.0]))
            policy = Policy.ALWAYS if rate == 1 else Policy.POISSON
            parts[term(float(generator.choice([1.0, 2.0, 4.0])), policy, rate)] = int(generator.integers(1, 5))
        return Composition(adjacency, tuple(parts.items()))

    for _ in range(300):
        base, done = composition(), composition()
        if covers(base, done):
            agreed += 1
            assert np.all(Rdp().curve(done)[1] <= Rdp().curve(base)[1] * (1 + 1e-9))
        else:
            refused += 1
    assert agreed > 20 and refused > 20


# -- what is left of the losers --------------------------------


def test_nothing_of_the_losers_is_left(ledger, seeded, base, step, caplog):
    class Model:
        pass

    alive, scores = [], iter([1.0, 3.0, 2.0, 0.0])

    def trial(setting, own):
        own.record(step)
        model = Model()
        alive.append(weakref.ref(model))
        return next(scores), model

    with caplog.at_level("DEBUG"):
        found = choose(["a"], trial, trials=fixed(4), base=base, ledger=ledger, source=seeded)
    gc.collect()
    assert [reference() is found.output for reference in alive] == [False, True, False, False]
    assert sum(reference() is not None for reference in alive) == 1
    assert vars(found) == {"setting": "a", "score": 3.0, "output": found.output}
    assert caplog.text == ""  # the number of runs is in no log


# -- everything charged --------------------------------


def test_try_all_charges_every_run_and_shows_every_run(ledger, step):
    def trial(setting, own):
        assert own is ledger
        own.record(step)
        return -abs(setting - 2), setting * 10

    found = try_all([1, 2, 5], trial, ledger=ledger)
    assert [outcome.setting for outcome in found] == [2, 1, 5]
    assert [outcome.output for outcome in found] == [20, 10, 50]
    assert len(ledger) == 3
    with pytest.raises(BudgetExceeded):
        try_all([1, 2], trial, ledger=ledger, budget=Budget(0.1, 1e-5), accountant="rdp")
    assert len(ledger) == 3
    with pytest.raises(ValueError, match="wrote nothing"):
        try_all([1], lambda *_: (0, None), ledger=Ledger())


@pytest.mark.parametrize("choice", [choose, try_all])
def test_no_candidates(choice, ledger, base):
    extra = {"trials": FEW, "base": base} if choice is choose else {}
    with pytest.raises(ValueError, match="candidates is empty"):
        choice([], None, ledger=ledger, **extra)


def test_a_seeded_source_needs_a_ledger_that_says_so(seeded, base):
    with pytest.raises(ValueError, match="secure randomness"):
        choose(["a"], None, trials=FEW, base=base, ledger=Ledger(), source=seeded)
