"""Trees of dp-accounting: what is written costs there what it costs here, and comes back as it was."""

import pytest

from tacit.accounting import guarantee
from tacit.integrations.dp_events import read_dp_event, write_dp_event
from tacit.ledger import (
    Allocated,
    Everyone,
    FixedSize,
    GaussianSum,
    Header,
    LaplaceSum,
    Poisson,
    SparseVector,
    Step,
    TruncatedPoisson,
)

dp = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld")

ONE = GaussianSum(group="a", clip_norm=2.0, noise_std=4.0)
TWO = GaussianSum(group="b", clip_norm=1.0, noise_std=3.0)
LEDGERS = {
    "everyone": [(Step(Everyone(), (ONE,)), 3)],
    "poisson": [(Step(Poisson(rate=0.02), (ONE,)), 200)],
    "two sums": [(Step(Poisson(rate=0.05), (ONE, TWO)), 100), (Step(Everyone(), (TWO,)), 1)],
    "laplace": [(Step(Everyone(), (LaplaceSum(group="a", clip_norm=1.0, scale=20.0, dimension=1),)), 2)],
}


@pytest.mark.parametrize("name", LEDGERS)
def test_a_tree_costs_what_the_ledger_costs(name: str) -> None:
    entries = LEDGERS[name]
    theirs = pld.PLDAccountant()
    theirs.compose(write_dp_event(entries))
    ours = guarantee(entries, Header(), delta=1e-5)
    assert ours.epsilon_lower * (1 - 1e-3) <= theirs.get_epsilon(1e-5) <= ours.epsilon * 1.01 + 1e-3


@pytest.mark.parametrize("name", ["everyone", "poisson", "two sums"])
def test_a_tree_that_was_written_reads_as_the_same_cost(name: str) -> None:
    entries = LEDGERS[name]
    back = read_dp_event(write_dp_event(entries))
    assert [(type(step.sampling), count) for step, count in back] == [
        (type(step.sampling), count) for step, count in entries
    ]
    found = guarantee(back, Header(), delta=1e-5).epsilon
    assert found == pytest.approx(guarantee(entries, Header(), delta=1e-5).epsilon, rel=1e-9)


def test_nested_trees_are_read() -> None:
    inner = dp.ComposedDpEvent([dp.GaussianDpEvent(3.0), dp.SelfComposedDpEvent(dp.GaussianDpEvent(6.0), 4)])
    tree = dp.SelfComposedDpEvent(
        dp.ComposedDpEvent([dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, inner), 5), dp.NoOpDpEvent()]), 7
    )
    ((step, count),) = read_dp_event(tree, unit="user")
    assert count == 35
    assert step.sampling == Poisson(rate=0.1, unit="user")
    assert step.noise_multiplier == pytest.approx((1 / 9 + 4 / 36) ** -0.5)
    fixed = read_dp_event(dp.SampledWithoutReplacementDpEvent(100, 7, dp.GaussianDpEvent(2.0)))
    assert fixed[0][0].sampling == FixedSize(size=7, records=100)


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (Step(Allocated(lots=5, epoch=0, records=10), (ONE,)), "Allocated"),
        (Step(TruncatedPoisson(rate=0.1, records=100, most=30), (ONE,)), "TruncatedPoisson"),
        (
            Step(Everyone(), (SparseVector(group="s", threshold_epsilon=1.0, release_epsilon=1.0, releases=1),)),
            "SparseVector",
        ),
        (Step(Everyone(), (LaplaceSum(group="a", clip_norm=1.0, scale=2.0, dimension=3),)), "LaplaceSum"),
    ],
)
def test_writing_a_step_without_a_dp_event_names_the_step(step: Step, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        write_dp_event([(step, 1)])


@pytest.mark.parametrize("event", [dp.NonPrivateDpEvent(), dp.UnsupportedDpEvent()])
def test_reading_an_unsupported_dp_event_names_the_event(event: object) -> None:
    with pytest.raises(ValueError, match=type(event).__name__):
        read_dp_event(event)
