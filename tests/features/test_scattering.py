"""The scattering transform against a direct computation in space, and the front end around it."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch

from tacit.features import Grouped, Scattering, Statistics, Whitened
from tacit.features.leaves import dead_leaves
from tacit.features.scattering import upright
from tacit.features.wavelets import Transform, mirrored, morlet, paths
from tacit.ledger import Header, Ledger, Poisson
from tacit.randomness import SeededSource


def images(count: int = 5, channels: int = 1, side: int = 16, seed: int = 0) -> torch.Tensor:
    return (dead_leaves(count, (channels, side, side), seed=seed + 100) * 255).to(torch.uint8)


# -- an oracle in space: loops over pixels, wavelets as the books write them, no FFT ---------------------------------


def wavelet_in_space(grid: tuple[int, int], scale: int, angle: float, angles: int) -> np.ndarray:
    """exp(-r²/2σ²)(exp(iξ·u) - κ) on a circular grid, with the mean taken out and the gain of its envelope 1."""
    sigma, xi, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / angles
    wave, envelope = np.zeros(grid, complex), np.zeros(grid)
    for row in range(grid[0]):
        for column in range(grid[1]):
            for up in range(-2, 3):
                for right in range(-2, 3):
                    v, h = row + up * grid[0], column + right * grid[1]
                    along = math.cos(angle) * v + math.sin(angle) * h
                    across = math.cos(angle) * h - math.sin(angle) * v
                    bell = math.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
                    wave[row, column] += bell * cmath.exp(1j * xi * along)
                    envelope[row, column] += bell
    wave -= wave.sum() / envelope.sum() * envelope
    return wave * slant / (2 * math.pi * sigma**2)


def convolved(image: np.ndarray, filter_: np.ndarray) -> np.ndarray:
    """Circular convolution by its definition."""
    total = np.zeros(image.shape, complex)
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            total += image[row, column] * np.roll(filter_, (row, column), axis=(0, 1))
    return total


def averaged(image: np.ndarray, step: int, scales: int, side: int) -> np.ndarray:
    block, sigma = 2**scales, 0.8 * 2 ** (scales - 1)
    result = np.zeros((side // block, side // block))
    for i in range(side // block):
        for k in range(side // block):
            centre = [block + block * place + (block - 1) / 2 for place in (i, k)]
            weights = np.array(
                [
                    [
                        math.exp(-((row * step - centre[0]) ** 2 + (column * step - centre[1]) ** 2) / (2 * sigma**2))
                        for column in range(image.shape[1])
                    ]
                    for row in range(image.shape[0])
                ]
            )
            result[i, k] = (weights * image).sum() / weights.sum()
    return result


def scattered(image: np.ndarray, scales: int, angles: int) -> list[np.ndarray]:
    block, side = 2**scales, image.shape[0]
    padded = np.pad(image.astype(float), block, mode="reflect")
    found = []
    for path in paths(scales, angles):
        current, step = padded, 1
        for scale, angle in zip(path.scales, path.angles):
            own = scale - int(math.log2(step))
            filter_ = wavelet_in_space(current.shape, own, math.pi * angle / angles, angles)
            current = np.abs(convolved(current, filter_))[:: 2**own, :: 2**own]
            step = 2**scale
        found.append(averaged(current, step, scales, side))
    return found


@pytest.mark.parametrize(("scales", "angles", "side"), [(1, 3, 8), (2, 2, 8), (3, 1, 16)])
def test_the_transform_is_what_the_definition_says(scales: int, angles: int, side: int) -> None:
    image = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(scales))
    ours = Transform((side, side), scales=scales, angles=angles)(image)[0, 0]
    assert np.allclose(ours.numpy(), np.stack(scattered(image[0, 0].numpy(), scales, angles)), atol=2e-5)


def test_second_order_has_every_pair_of_scales_and_angles_once() -> None:
    table = paths(3, 2)
    assert len(table) == 1 + 3 * 2 + 3 * 2 * 2 == len(set(table))
    assert len(paths(2, 8)) == 81


def test_wavelets_have_mean_zero_and_keep_energy() -> None:
    spectra = np.stack([morlet((40, 40), j, math.pi * a / 8, 0.5) for j in range(2) for a in range(8)])
    assert np.abs(spectra[:, 0, 0]).max() < 1e-12
    opposite = np.roll(spectra[:, ::-1, ::-1], (1, 1), axis=(1, 2))
    energy = 0.5 * (spectra**2 + opposite**2).sum(axis=0)  # a real image has both halves of the plane
    assert energy.max() < 1.7  # measured 1.64: Littlewood and Paley's sum


def test_features_hold_no_more_energy_than_the_filters_allow() -> None:
    pictures = torch.rand(4, 1, 16, 16)
    transform = Transform((16, 16), scales=2, angles=8)
    padded = torch.nn.functional.pad(pictures, (4, 4, 4, 4), mode="reflect")
    found = transform(pictures)
    orders = [found[:, :, :1], found[:, :, 1:17], found[:, :, 17:]]
    # Gaussian averages at every 4th place; each order loses or keeps, never makes, energy but for the filters' gain.
    for order, part in enumerate(orders):
        assert (16 * part.square().sum(dim=(1, 2, 3, 4)) <= 1.7**order * padded.square().sum(dim=(1, 2, 3))).all()


def test_a_moved_image_has_moved_features() -> None:
    picture = torch.zeros(1, 1, 32, 32)
    picture[..., 12:18, 10:17] = dead_leaves(1, (1, 6, 7))
    transform = Transform((32, 32), scales=2, angles=4)
    moved = transform(picture.roll((4, 8), dims=(2, 3)))
    still = transform(picture).roll((1, 2), dims=(3, 4))
    assert torch.allclose(moved[..., 2:6, 3:6], still[..., 2:6, 3:6], atol=1e-3)
    assert moved.abs().max() > 0.1


def test_a_mirrored_image_has_mirrored_features() -> None:
    pictures = dead_leaves(8, (1, 32, 32))
    transform = Transform((32, 32), scales=2, angles=8)
    ours = transform(pictures)[:, :, mirrored(2, 8)].flip(-1)
    theirs = transform(pictures.flip(-1))
    assert (ours - theirs).norm() < 0.02 * theirs.norm()
    assert (ours - theirs.flip(-1)).norm() > 0.1 * theirs.norm()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images are 30×30; sides must be multiples of 4"):
        Scattering().features((1, 30, 30))
    with pytest.raises(ValueError, match="multiples of 8, at least 16"):
        Transform((8, 8), scales=3, angles=2)
    with pytest.raises(ValueError, match="groups is 10; it must divide the 81 channels"):
        Scattering(normalisation=Grouped(groups=10)).features((1, 28, 28))
    with pytest.raises(ValueError, match="scales is 0"):
        Scattering(scales=0)


# -- the front end ---------------------------------------------------------------------------------------------------

FRONTS = [
    Scattering(upright=True, angles=2, normalisation=Grouped(groups=9)),
    Scattering(mirror=True, pooling=2, angles=2, normalisation=Whitened()),
    Scattering(angles=2, normalisation=Whitened(statistics=Statistics(sampling_rate=1.0))),
]


@pytest.mark.parametrize("front", FRONTS)
def test_a_row_is_made_from_its_record_alone(front: Scattering) -> None:
    rows = images(40)
    fitted = front.fit(rows, ledger=Ledger(Header(secure_randomness=False)), source=SeededSource(1))
    together, alone = fitted.transform(rows), torch.cat([fitted.transform(rows[i : i + 1]) for i in range(40)])
    assert together.shape == (40, *fitted.shape) == (40, *front.features((1, 16, 16)))
    assert together.dtype == torch.float32 and torch.isfinite(together).all()
    assert torch.allclose(together, alone, atol=1e-4)
    assert fitted.transform(rows[:0]).shape == (0, *fitted.shape)


@pytest.mark.parametrize("front", FRONTS)
def test_a_front_comes_back_from_its_state(front: Scattering) -> None:
    rows = images(6)
    fitted = front.fit(rows, ledger=Ledger(Header(secure_randomness=False)), source=SeededSource(1))
    again = front.restore(fitted.state(), (1, 16, 16))
    assert torch.equal(fitted.transform(rows), again.transform(rows))


def test_a_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="the saved mean has shape"):
        FRONTS[2].restore({"mean": torch.zeros(3)}, (1, 16, 16))


@pytest.mark.parametrize("front", FRONTS)
def test_fitting_scattering_charges_exactly_the_announced_steps(front: Scattering) -> None:
    ledger = Ledger(Header(secure_randomness=False))
    front.fit(images(6), ledger=ledger, source=SeededSource(1))
    assert [step for step, count in ledger.entries for _ in range(count)] == list(front.charges(6))


@pytest.mark.parametrize("front", FRONTS[:2])
def test_without_statistics_nothing_depends_on_the_records(front: Scattering) -> None:
    probe = images(3)
    one = front.fit(images(6, seed=1), ledger=Ledger(Header(secure_randomness=False)), source=SeededSource(1))
    other = front.fit(images(2, seed=9), ledger=Ledger(Header(secure_randomness=False)), source=SeededSource(2))
    assert torch.equal(one.transform(probe), other.transform(probe)) and not one.state()


def test_whitened_components_of_dead_leaves_are_white_and_rows_equally_long() -> None:
    front = Scattering(angles=2, normalisation=Whitened(exponent=1.0, floor=1e-6, length=3.0))
    fitted = front.fit(images(2), ledger=Ledger(Header(secure_randomness=False)), source=SeededSource(1))
    others = (dead_leaves(600, (1, 16, 16), seed=7) * 255).to(torch.uint8)
    found = fitted.components(others).movedim(1, -1).flatten(0, 2)
    covariance = found.T.cov()
    assert torch.allclose(covariance.diag(), torch.ones(len(covariance)), atol=0.3)
    assert (covariance - torch.eye(len(covariance))).abs().max() < 0.3
    assert torch.allclose(fitted.transform(others).flatten(1).norm(dim=1), torch.tensor(3.0), atol=1e-4)


def test_statistics_centre_the_components() -> None:
    front = Scattering(angles=2, normalisation=Whitened(statistics=Statistics(sampling_rate=1.0, noise_multiplier=0.1)))
    rows = images(300)
    fitted = front.fit(rows, ledger=Ledger(Header(secure_randomness=False)), source=SeededSource(1))
    found = fitted.components(rows)
    assert torch.allclose(fitted.state()["mean"], found.mean(dim=(0, 2, 3)), atol=0.05)


def test_an_upright_figure_is_centred_and_stands() -> None:
    figure = torch.zeros(1, 1, 28, 28)
    for row in range(5, 19):
        column = 4 + (row - 5) * 7 // 10
        figure[0, 0, row, column : column + 2] = 1.0
    straight = upright(figure)[0, 0]
    places = torch.arange(28.0) - 13.5
    total = straight.sum()
    x, y = (straight.sum(0) * places).sum() / total, (straight.sum(1) * places).sum() / total
    slant = (straight * (places - x)[None] * (places - y)[:, None]).sum() / total
    assert abs(x) < 0.2 and abs(y) < 0.2 and abs(slant) < 0.3
    assert torch.equal(upright(torch.zeros(1, 1, 28, 28)), torch.zeros(1, 1, 28, 28))


def test_a_front_refuses_other_images() -> None:
    fitted = Scattering(angles=1, normalisation=Grouped(groups=1)).fit(
        images(2), ledger=Ledger(Header(secure_randomness=False)), source=SeededSource(1)
    )
    with pytest.raises(ValueError, match=r"images have shape \(1, 24, 24\)"):
        fitted.transform(images(1, side=24))
    with pytest.raises(ValueError, match="they must be bytes"):
        fitted.transform(torch.rand(1, 1, 16, 16))


def test_the_sample_of_the_statistics_is_the_recorded_one() -> None:
    step = Scattering(normalisation=Whitened(statistics=Statistics(sampling_rate=0.1))).charges(1000)[0]
    assert step.sampling == Poisson(rate=0.1, records=1000)
