"""The noise that a selection needs, and a selection among learning rates from end to end."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.ledger import Budget, Everyone, Header, Ledger, Step
from tacit.randomness import SeededSource
from tacit.tuning import PoissonTrials, PrivateAccuracy, TruncatedNegativeBinomial, choose, try_all
from tacit.tuning import plan as plan_by

plan = functools.partial(plan_by, accountant="rdp")  # quick

FEW = TruncatedNegativeBinomial.of_mean(6, eta=0.0)


def cost(trials, base, delta=1e-5):
    ledger = Ledger()
    ledger.record(Step(Everyone(), (trials.event(base),)))
    return tacit.account(ledger, delta=delta, accountant="rdp").epsilon


@pytest.mark.parametrize("trials", [FEW, TruncatedNegativeBinomial.of_mean(20, eta=1.0), PoissonTrials(mean=10.0)])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_noise_fits_and_is_not_more_than_needed(trials, epsilon):
    found = plan(trials, records=10_000, lot_size=100, epochs=3, epsilon=epsilon, delta=1e-5)
    assert found.steps == 300
    assert found.guarantee.epsilon == pytest.approx(cost(trials, found.base)) and found.guarantee.epsilon <= epsilon
    (step, count) = found.base[0]
    assert count == 300 and found.noise_multiplier * (1 - 1e-7) < step.noise_multiplier < found.noise_multiplier
    query = step.queries[0]
    less = Step(step.sampling, (tacit.ledger.GaussianSum(group="g", clip_norm=1.0, noise_std=query.noise_std / 1.002),))
    assert cost(trials, ((less, count),)) > epsilon
    single = tacit.plan(records=10_000, lot_size=100, epochs=3, epsilon=epsilon, delta=1e-5, accountant="rdp")
    assert found.noise_multiplier > single.noise_multiplier


def test_profiles_need_less_noise_and_a_run_planned_by_them_fits():
    settings = {"records": 60_000, "lot_size": 600, "steps": 1000, "epsilon": 2.0, "delta": 1e-5}
    found = plan_by(FEW, **settings)
    assert found.noise_multiplier < 0.9 * plan(FEW, **settings).noise_multiplier
    ledger = Ledger()
    ledger.guard(tacit.accounting.Filter(Budget(epsilon=2.0, delta=1e-5)))
    ledger.record(Step(Everyone(), (FEW.event(found.base),)))
    assert 1.99 < tacit.account(ledger, delta=1e-5).epsilon <= 2.0


def test_the_score_and_what_was_spent_before_are_paid_for():
    settings = {"records": 10_000, "lot_size": 100, "epochs": 3, "epsilon": 1.0, "delta": 1e-5}
    alone = plan(FEW, **settings)
    accuracy = PrivateAccuracy(records=1000, noise_multiplier=20.0)
    scored = plan(FEW, **settings, score=((accuracy.step(), 1),))
    after = plan(FEW, **settings, also=((accuracy.step(), 1),))
    assert scored.base[1] == (accuracy.step(), 1)
    assert alone.noise_multiplier < after.noise_multiplier and alone.noise_multiplier < scored.noise_multiplier
    assert scored.guarantee.epsilon <= 1.0 and after.guarantee.epsilon <= 1.0


def test_fixed_size_sampling():
    found = plan(
        FEW, records=5000, lot_size=50, steps=100, epsilon=2.0, delta=1e-5, sampling="fixed-size",
        adjacency="replace-one",
    )  # fmt: skip
    assert found.guarantee.adjacency == "replace-one" and found.guarantee.epsilon <= 2.0
    assert found.guarantee.sampling == "fixed size without replacement"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": 1e-5}, "no noise brings the selection down"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"lot_size": 2000}, "lot_size is 2000"),
        ({"epochs": 2.0}, "give one of them"),
        ({"steps": None}, "give one of them"),
        ({"steps": None, "epochs": math.inf}, "epochs is inf"),
        ({"steps": 0}, "count is 0"),
        ({"sampling": "shuffled"}, "'poisson' or 'fixed-size'"),
        ({"sampling": "fixed-size"}, "no proof"),
    ],
)
def test_bad_values(change, message):
    settings = {"records": 1000, "lot_size": 10, "steps": 5, "epsilon": 1.0, "delta": 1e-5} | change
    with pytest.raises(ValueError, match=message):
        plan(FEW, **settings)


# -- from end to end --------------------------------


def problem(count, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return 2 * torch.eye(4)[y] + 0.5 * torch.randn(count, 4, generator=generator), y


X, Y = problem(600, 1)
VALID, VALID_Y = problem(300, 2)


def trained(rate, ledger, noise_multiplier, **settings):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    run = tacit.make_private(
        model, optimizer, TensorDataset(X, Y), lot_size=60, steps=20, clipping=tacit.Flat(1.0),
        noise_multiplier=noise_multiplier, ledger=ledger, accountant="rdp", **settings,
    )  # fmt: skip
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    return run, model


def test_tuning_finds_the_better_learning_rate(tmp_path):
    """Rates of which one learns and two do not; a private score; nothing is charged but the selection."""
    trials = TruncatedNegativeBinomial.of_mean(12, eta=3.0)
    accuracy = PrivateAccuracy(records=len(VALID), noise_multiplier=5.0)
    budget = Budget(epsilon=8.0, delta=1e-5)
    found = plan(
        trials, records=600, lot_size=60, steps=20, epsilon=8.0, delta=1e-5, score=((accuracy.step(), 1),)
    )  # fmt: skip

    def trial(rate, ledger):
        _, model = trained(rate, ledger, found.noise_multiplier)
        correct = (model(VALID).argmax(1) == VALID_Y)[:, None]
        return accuracy.release(correct, ledger=ledger), model

    # Seeded, so that K and the settings, and hence whether 1.0 is tried at all, are the same each time.
    with Ledger.open(tmp_path / "ledger.jsonl", Header(secure_randomness=False)) as ledger:
        best = choose(
            [1e-6, 1.0, 1e-5], trial, trials=trials, base=found.base, ledger=ledger, budget=budget,
            source=SeededSource(1),
        )  # fmt: skip
        assert len(ledger) == 1
        guarantee = tacit.account(ledger, delta=1e-5, accountant="rdp")
        assert guarantee.epsilon <= 8.0
    assert best.setting == 1.0
    assert (best.output(VALID).argmax(1) == VALID_Y).float().mean() > 0.8
    assert guarantee.epsilon == pytest.approx(found.guarantee.epsilon)


def test_a_run_with_less_noise_than_planned_is_stopped():
    found = plan(FEW, records=600, lot_size=60, steps=20, epsilon=8.0, delta=1e-5)
    ledger = Ledger()
    with pytest.raises(tacit.tuning.TrialOverrun):
        choose(
            [0.1], lambda rate, own: (0, trained(rate, own, found.noise_multiplier * 0.99)), trials=FEW,
            base=found.base, ledger=ledger,
        )  # fmt: skip
    assert len(ledger) == 1


def test_all_of_them_on_one_ledger():
    """Adding up: every run and one comparison of all models, charged to one ledger."""
    ledger, models = Ledger(), []

    def trial(rate, own):
        models.append(trained(rate, own, 4.0)[1])
        return 0, models[-1]

    try_all([1e-6, 1.0, 1e-5], trial, ledger=ledger)
    compare = PrivateAccuracy(records=len(VALID), noise_multiplier=5.0, models=3)
    correct = torch.stack([model(VALID).argmax(1) == VALID_Y for model in models], dim=1)
    scores = compare.release(correct, ledger=ledger)
    assert int(scores.argmax()) == 1
    assert len(ledger) == 3 * 20 + 1


# -- what the guarantee says --------------------------------


def test_the_guarantee_says_that_tuning_is_included(base):
    ledger = Ledger()
    plain = tacit.account(Ledger(), delta=1e-5, accountant="rdp")
    assert plain.tuning == "" and "tuning" not in str(plain)
    steps = plan(FEW, records=600, lot_size=60, steps=20, epsilon=8.0, delta=1e-5)
    ledger.record(Step(Everyone(), (FEW.event(steps.base),)))
    text = str(tacit.account(ledger, delta=1e-5, accountant="rdp"))
    assert text.startswith("(ε = ") and ", Poisson, rdp; tuning included: the best of K secret runs" in text
    assert f"η = 0, γ = {FEW.gamma:.4g}, 6 on average" in text
    assert "no sampling" not in text  # that of the runs, not of the selection
    ledger.record(Step(Everyone(), (FEW.event(steps.base),)))
    ledger.record(Step(Everyone(), (PoissonTrials(mean=3.0).event(steps.base),)))
    text = str(tacit.account(ledger, delta=1e-5, accountant="rdp"))
    assert "2 × the best of K" in text and "K Poisson, 3 on average" in text
    assert tacit.account(ledger, delta=1e-5).accountant == "rdp"  # beside each other


def test_the_statement_of_a_run_after_a_selection():
    ledger = Ledger()
    steps = plan(FEW, records=600, lot_size=60, steps=20, epsilon=8.0, delta=1e-5)
    ledger.record(Step(Everyone(), (FEW.event(steps.base),)))
    run, _ = trained(0.5, ledger, 6.0)
    text = run.statement(1e-5)
    for item in (
        "Tuning: included. The claim pays for the best of K secret runs",
        "if an attacker learns the number of runs",
        "Steps T: 20 with sampling rate q = 0.1",
        "Noise multiplier of a step (all its queries together): 6;",
        "Each run tried, Steps T: 20 with sampling rate q = 0.1",
        f"Each run tried, Noise multiplier of a step (all its queries together): {steps.noise_multiplier:.4g};",
    ):
        assert item in text, item
    assert "inf" not in text
