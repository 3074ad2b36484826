"""Procedural pictures, and the metric that is made of their variants."""

from __future__ import annotations

import pytest
import torch

from tacit.features import Grouped, Invariant, Scattering, Statistics, Whitened
from tacit.features.invariant import metric
from tacit.features.leaves import varied_leaves
from tacit.features.strokes import strokes
from tacit.ledger import Header, Ledger, Poisson
from tacit.randomness import SeededSource

BASE = Scattering(angles=2, normalisation=Grouped(groups=9))
MIRRORED = Scattering(angles=2, mirror=True, normalisation=Whitened())
FRONTS = [
    Invariant(base=BASE, dimensions=20, figures=40),
    Invariant(base=BASE, pictures="leaves", dimensions=30, figures=40, statistics=Statistics(sampling_rate=1.0)),
    Invariant(base=MIRRORED, pictures="leaves", dimensions=9, figures=20),
]


def images(count: int) -> torch.Tensor:
    return varied_leaves(count, 1, (1, 16, 16), seed=99)


def ledger() -> Ledger:
    return Ledger(Header(secure_randomness=False))


def features(seed: int = 0) -> torch.Tensor:
    """Pictures in a plane of two directions: along the first they differ, along the second their variants do."""
    draw = torch.Generator().manual_seed(seed)
    plane = torch.linalg.qr(torch.randn(12, 2, generator=draw)).Q.T
    between, within = torch.randn(400, 1, 1, generator=draw), torch.randn(400, 5, 1, generator=draw)
    noise = 0.01 * torch.randn(400, 5, 12, generator=draw)
    return (3 * between * plane[0] + 2 * within * plane[1] + noise + 7).flatten(0, 1)


@pytest.mark.parametrize("make", [lambda: strokes(6, 3, (28, 28)), lambda: varied_leaves(6, 3, (3, 32, 32))])
def test_variants_of_a_picture_are_more_alike_than_pictures(make: object) -> None:
    assert callable(make)
    pictures = make()
    assert pictures.dtype == torch.uint8 and len(pictures) == 18 and torch.equal(pictures, make())
    rows = pictures.float().flatten(1)
    distance = torch.cdist(rows, rows)
    same = torch.arange(18)[:, None] // 3 == torch.arange(18)[None] // 3
    apart = ~torch.eye(18, dtype=torch.bool)
    assert 0 < distance[same & apart].mean() < 0.9 * distance[~same].mean()


def test_strokes_are_bright_figures_of_one_size_on_black() -> None:
    pictures = strokes(50, 2, (28, 28), seed=3).float()[:, 0] / 255
    seen = pictures > 0.5
    assert (seen.any(2).any(1)).all() and 0.03 < seen.float().mean() < 0.4
    sides = torch.stack([seen.any(1).sum(1), seen.any(2).sum(1)]).amax(0)
    assert (sides >= 14).all() and sides.float().mean() < 25  # the pen is thick now and then


def test_variation_within_pictures_is_taken_back_by_the_exponent() -> None:
    rows = features()
    mean, plain = metric(rows.clone(), 5, dimensions=2, exponent=0.0, floor=0.0)
    _, full = metric(rows.clone(), 5, dimensions=2, exponent=1.0, floor=1e-9)
    assert torch.allclose(mean, rows.mean(0))
    assert torch.allclose(plain.T @ plain, torch.eye(2), atol=1e-4), "without an exponent the metric is Euclid's"
    found = ((rows - mean) @ full).view(400, 5, 2)
    within = (found - found.mean(1, keepdim=True)).flatten(0, 1)
    covariance = within.T @ within / (2000 * 0.8)
    assert torch.allclose(covariance, torch.eye(2), atol=0.01), "variation within pictures is white"
    ratio = found.mean(1).var(0).max() / within.var(0).max()
    before = ((rows - mean) @ plain).view(400, 5, 2)
    spread = (before - before.mean(1, keepdim=True)).flatten(0, 1).var(0).max()
    assert ratio > 20 * before.mean(1).var(0).max() / spread


def test_a_floor_bounds_how_far_a_quiet_direction_is_stretched() -> None:
    rows = features()
    _, directions = metric(rows, 5, dimensions=2, exponent=1.0, floor=1.0)
    lengths = torch.linalg.svdvals(directions)
    assert lengths.max() / lengths.min() < 3**0.5 + 1e-3  # eigenvalues 4 and 0 and a floor of 2: √(6/2)


@pytest.mark.parametrize("front", FRONTS)
def test_a_row_is_made_from_its_record_alone_and_has_the_given_length(front: Invariant) -> None:
    rows = images(20)
    fitted = front.fit(rows, ledger=ledger(), source=SeededSource(1))
    together, alone = fitted.transform(rows), torch.cat([fitted.transform(rows[i : i + 1]) for i in range(20)])
    assert together.shape == (20, *fitted.shape) == (20, *front.features((1, 16, 16)))
    assert torch.allclose(together, alone, atol=1e-3)
    assert torch.allclose(together.norm(dim=1), torch.tensor(front.length), atol=1e-3)


@pytest.mark.parametrize("front", FRONTS)
def test_a_metric_comes_back_from_its_state_without_records(front: Invariant) -> None:
    rows = images(6)
    fitted = front.fit(rows, ledger=ledger(), source=SeededSource(1))
    assert torch.equal(fitted.transform(rows), front.restore(fitted.state(), (1, 16, 16)).transform(rows))
    with pytest.raises(ValueError, match="the saved front end has tensors of shapes"):
        front.restore(fitted.state() | {"directions": torch.zeros(3, 3)}, (1, 16, 16))


@pytest.mark.parametrize("front", FRONTS)
def test_fitting_charges_exactly_the_announced_steps(front: Invariant) -> None:
    book = ledger()
    front.fit(images(6), ledger=book, source=SeededSource(1))
    assert [step for step, count in book.entries for _ in range(count)] == list(front.charges(6))


def test_without_statistics_nothing_depends_on_the_records() -> None:
    one = FRONTS[0].fit(images(6), ledger=ledger(), source=SeededSource(1)).state()
    other = FRONTS[0].fit(images(3), ledger=ledger(), source=SeededSource(2)).state()
    assert set(one) == {"centre", "directions"} and all(torch.equal(one[name], other[name]) for name in one)


def test_a_record_moves_the_released_mean_by_its_share_at_most() -> None:
    """Without noise, one record more moves the sum of unit rows by a vector of norm 1, as the query says."""
    front = Invariant(
        base=BASE,
        pictures="leaves",
        dimensions=30,
        figures=40,
        statistics=Statistics(sampling_rate=1.0, noise_multiplier=1e-6),
    )
    rows = images(21)
    sums = []
    for count in (20, 21):
        fitted = front.fit(rows[:count], ledger=ledger(), source=SeededSource(1))
        assert torch.allclose(fitted.state()["mean"], fitted.unit(rows[:count]).mean(0), atol=1e-4)
        sums.append(fitted.state()["mean"] * count)
    assert (sums[1] - sums[0]).norm() <= 1 + 1e-3
    assert (sums[1] - sums[0]).norm() > 0.9
    (step,) = front.charges(1000)
    assert step.queries[0].clip_norm == 1.0


def test_the_statistics_of_a_sample_are_charged_as_one() -> None:
    (step,) = Invariant(base=BASE, statistics=Statistics(sampling_rate=0.1)).charges(1000)
    assert step.sampling == Poisson(rate=0.1, records=1000)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="choose 'strokes' or 'leaves'"):
        Invariant(base=BASE, pictures="photographs")
    with pytest.raises(ValueError, match="procedural pictures lack"):
        Invariant(base=Scattering(normalisation=Whitened(statistics=Statistics())))
    with pytest.raises(ValueError, match="images have 3 channels"):
        Invariant(base=BASE).features((3, 16, 16))
    with pytest.raises(ValueError, match="dimensions is 4000"):
        Invariant(base=BASE, dimensions=4000).features((1, 16, 16))
