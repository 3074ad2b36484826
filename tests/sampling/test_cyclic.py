"""Groups of records that take turns, each by its own coins."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.ledger import GaussianSum, Ledger, Receipt, Step
from tacit.randomness import SecureSource
from tacit.sampling import CyclicSampler


def receipt(sampler: CyclicSampler) -> Receipt:
    return Ledger().record(Step(sampler.event(), (GaussianSum(group="g", clip_norm=1.0, noise_std=1.0),)))


def lots(sampler: CyclicSampler, steps: int) -> list[np.ndarray]:
    return [sampler.draw(receipt(sampler)) for _ in range(steps)]


def test_with_rate_one_every_record_comes_back_after_exactly_as_many_steps_as_groups() -> None:
    drawn = lots(CyclicSampler(1000, groups=7, rate=1.0, source=SecureSource()), 21)
    assert sorted(np.concatenate(drawn[:7])) == list(range(1000))
    for step in range(14):
        assert np.array_equal(drawn[step], drawn[step + 7])


def test_a_record_takes_part_in_its_own_turns_only_and_at_the_recorded_rate() -> None:
    sampler = CyclicSampler(3000, groups=3, rate=0.3, source=SecureSource())
    drawn = lots(sampler, 300)
    turns = [set(np.concatenate(drawn[first::3]).tolist()) for first in range(3)]
    assert not turns[0] & turns[1] and not turns[1] & turns[2] and not turns[0] & turns[2]
    assert sampler.expected == pytest.approx(300)
    assert np.mean([len(lot) for lot in drawn]) == pytest.approx(300, rel=0.05)


def test_groups_are_of_binomial_size_because_each_record_has_its_own_coin() -> None:
    sizes = [len(lots(CyclicSampler(400, groups=2, rate=1.0, source=SecureSource()), 1)[0]) for _ in range(400)]
    assert np.mean(sizes) == pytest.approx(200, abs=3)
    assert np.std(sizes) == pytest.approx(10, rel=0.2)


def test_a_restored_sampler_begins_a_new_block_with_new_groups() -> None:
    sampler = CyclicSampler(1000, groups=5, rate=1.0, source=SecureSource())
    before, block = lots(sampler, 5), sampler.event().block
    sampler.restore(sampler.state())
    after = lots(sampler, 5)
    assert sampler.event().block != block
    assert sampler.position == 5
    assert not np.array_equal(before[0], after[0])


def test_an_interrupted_draw_is_charged_as_the_step_it_was_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all later steps of the block would be one step behind those of the ledger."""
    sampler = CyclicSampler(60, groups=3, rate=1.0, source=SecureSource())

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sampler, "_assigned", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sampler.draw(receipt(sampler))
    drawn = lots(sampler, 3)
    assert sampler.position == 4
    for step, members in enumerate(drawn, start=1):
        assert np.array_equal(members, sampler._members[step % 3])


def test_another_event_than_the_samplers_own_is_refused() -> None:
    sampler, other = (CyclicSampler(10, groups=2, rate=1.0, source=SecureSource()) for _ in range(2))
    with pytest.raises(ValueError, match="the ledger has"):
        sampler.draw(receipt(other))
    with pytest.raises(ValueError, match="groups is 11"):
        CyclicSampler(10, groups=11, rate=1.0, source=SecureSource())
