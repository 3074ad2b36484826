"""Noise drawn in parts by several participants: together it is what the ledger says, or more."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import signal

from tacit.accounting import account
from tacit.ledger import Everyone, Header, Ledger, Step
from tacit.mechanisms import SharedSum
from tacit.mechanisms.discrete import LARGEST
from tacit.mechanisms.lattice import usual_lattice
from tacit.mechanisms.shared_noise import LEAST_STEPS, MOST_PARTS
from tacit.randomness import SecureSource, SeededSource


def pmf(variance: float, reach: int) -> np.ndarray:
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    weights = np.exp(-x * x / (2 * variance))
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("variance", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_sums_of_discrete_gaussians_differ_from_one_by_at_most_the_proved_factor(variance: float, parts: int) -> None:
    """T of the proof, step 1, against exact convolutions, where the gap is large enough to be seen."""
    reach = 12
    one, total = pmf(variance, reach), np.ones(1)
    for _ in range(parts):
        total = np.convolve(total, one)
    middle = parts * reach
    near = slice(middle - 2 * parts, middle + 2 * parts + 1)  # where no tail was cut off
    whole = pmf(parts * variance, middle)
    gap = float(np.abs(np.log(total[near] / whole[near])).max())
    assert 1e-6 < gap <= slip(variance, parts)


def slip(variance: float, parts: int) -> float:
    """Return T = Σ_k log((1 + η_k) / (1 - η_k)) of the proof."""
    found = 0.0
    for k in range(1, parts):
        smoother = variance * k / (k + 1)
        eta = 2 * sum(math.exp(-2 * math.pi**2 * smoother * j * j) for j in range(1, 9))
        found += math.log((1 + eta) / (1 - eta))
    return found


def test_the_charge_for_rounding_covers_the_proved_factor_at_every_admitted_size() -> None:
    """Step 3 of the proof with its constants, at the corners of what `SharedSum` admits."""
    log_t = math.log(3 * MOST_PARTS * 3) - 2 * math.pi**2 * LEAST_STEPS**2 / 2
    for dimension in (1, 2, 3, 5, 1000, 10**7, 2**40 + 1):
        for clip in (1.0, 0.7, 1.9999, 3e-5):
            ratio = usual_lattice(clip, dimension) * math.sqrt(dimension) / clip
            assert 2.0**-15 < ratio <= 2.0**-14
            charged, moved = (1 + ratio) ** 2, (1 + ratio / 2) ** 2
            assert charged >= (1 + 2.0**-16) * moved
            least = (ratio / math.sqrt(dimension)) ** -2 * moved / (2 * MOST_PARTS * (LARGEST / 2) ** 2)
            assert least >= 2.0**-70 * dimension
            assert math.log(dimension * (2 + 2.0**17)) + log_t < math.log(2.0**-18 * least)


def sum_of(parts: int, *, dimension: int = 3, z: float = 2.0) -> SharedSum:
    return SharedSum(group="update", clip_norm=1.0, noise_multiplier=z, parts=parts, dimension=dimension)


def shares(query: SharedSum, vectors: list[torch.Tensor], seed: int = 0) -> np.ndarray:
    source, found = SeededSource(seed), []
    for vector in vectors:
        ledger = Ledger(Header(unit="participant", secure_randomness=False))
        receipt = ledger.record(Step(Everyone(unit="participant"), (query.event(),)), secure=False)
        found.append(query.share(receipt, vector, source))
    return np.sum(found, axis=0)


@pytest.mark.parametrize("people", [4, 6])
def test_those_who_remain_have_at_least_the_noise_that_was_recorded(people: int) -> None:
    """Four parts are exactly enough; six participants have half as much variance again."""
    query = sum_of(4, dimension=20_000)
    total = query.total(shares(query, [torch.zeros(20_000)] * people)).numpy()
    expected = query.event().noise_std * math.sqrt(people / 4)
    assert float(total.std()) == pytest.approx(expected, rel=0.02)  # 4 standard deviations of the estimate
    assert query.parts * query.own_steps**2 >= (query.event().noise_std / query.lattice) ** 2


def test_the_recorded_delta_covers_the_exact_one_of_the_convolved_noise() -> None:
    """One coordinate, three parts of little noise: exact probabilities of the sum against the accountants' δ."""
    query = SharedSum(group="update", clip_norm=1.0, noise_multiplier=0.5, parts=3, dimension=1)
    steps, moved = query.own_steps, round(1 / query.lattice)  # a record that moves the sum by S
    reach = math.ceil(9 * steps)
    one = pmf(steps**2, reach)
    noise = signal.fftconvolve(signal.fftconvolve(one, one), one)
    ledger = Ledger(Header(unit="participant"))
    ledger.record(Step(Everyone(unit="participant"), (query.event(),)))
    for accountant in ("pld", "rdp"):
        for epsilon in (1.0, 3.0):
            exact = float(np.maximum(noise[:-moved] - math.exp(epsilon) * noise[moved:], 0).sum())
            claimed = account(ledger, epsilon=epsilon, accountant=accountant).delta
            assert 0.01 < exact <= claimed < 1.001 * exact + (accountant == "rdp")


def test_vectors_are_clipped_rounded_and_nan_counts_as_zero() -> None:
    query = sum_of(1, dimension=2, z=0.01)
    far = shares(query, [torch.tensor([3e8, 4e8])])
    nothing = shares(query, [torch.tensor([math.nan, 1.0])])
    moved = query.total(far - nothing).numpy()  # the same noise twice
    assert moved == pytest.approx([0.6, 0.8], abs=query.lattice)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parts": 0}, "parts is 0"),
        ({"parts": 2000}, "at most 1024"),
        ({"noise_multiplier": 1e-4}, "steps of the lattice; it must be from 32"),
        ({"noise_multiplier": math.inf}, "noise multiplier is inf"),
        ({"dimension": True}, "dimension is True"),
    ],
)
def test_values_without_a_proof_are_refused(changes: dict[str, float], sentence: str) -> None:
    good = {"group": "u", "clip_norm": 1.0, "noise_multiplier": 1.0, "parts": 2, "dimension": 3}
    with pytest.raises(ValueError, match=sentence):
        SharedSum(**(good | changes))  # type: ignore[arg-type]


def test_noise_is_drawn_only_for_the_event_that_was_recorded(tmp_path: Path) -> None:
    query, other = sum_of(2), sum_of(2, z=3.0)
    with Ledger.open(tmp_path / "ledger.jsonl", Header(unit="participant")) as ledger:
        receipt = ledger.record(Step(Everyone(unit="participant"), (other.event(),)))
        with pytest.raises(ValueError, match="record the event of this sum"):
            query.share(receipt, torch.zeros(3), SecureSource())
        receipt = ledger.record(Step(Everyone(unit="participant"), (query.event(),)))
        query.share(receipt, torch.zeros(3), SecureSource())
        with pytest.raises(RuntimeError, match="already released"):
            query.share(receipt, torch.zeros(3), SecureSource())
