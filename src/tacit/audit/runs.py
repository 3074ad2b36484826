"""White-box attacks with gradient canaries: one record in many runs, and many canaries in one run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from tacit.audit.bounds import (
    at_least,
    at_most,
    best_guess,
    distinguishing_epsilon,
    one_run_epsilon,
    right_guesses,
)
from tacit.audit.curve import gaussian_epsilon, one_run_curve_epsilon
from tacit.audit.probe import claim_of, coins, log_ratio, run_with_canaries
from tacit.audit.result import Audit
from tacit.audit.setting import Setting, Track, check_count
from tacit.randomness import Floats, SecureSource, SeededSource, Source

_SIMULATED = 20_000
_USUAL = (0.3, 0.5, 0.7)


def many_runs(setting: Setting, *, runs: int = 1000, seed: int | None = None, track: Track = iter) -> Audit:
    """Tell two neighbouring data sets apart, again and again: in each run a coin decides whether the canary is in.

    The test is "the score is above the threshold", the threshold fixed beforehand from what the claimed mechanism
    would show (the best for each of the two bounds, and a few others). The error rates are bounded by Clopper & Pearson
    1934, so that all bounds hold at once with the confidence of the setting.
    ``seed`` repeats an audit, of seeded runs; without it the runs are as secure, and as real, as any.
    """
    check_count("runs", runs, 20, 10**7)
    source = _source(seed)
    places = coins(runs, source)
    scores = np.zeros(runs)
    ledger = None
    for number in track(range(runs)):
        done = run_with_canaries(setting, places[number : number + 1], _seed(seed, number))
        scores[number], ledger = done.scores[0], done.ledger
    assert ledger is not None
    tested = _tests(setting, scores[places == 0], scores[places == 1], 1 - setting.confidence)
    return Audit(
        attack="many runs, gradient canary",
        claim=claim_of(ledger, setting.delta),
        epsilon=tested.epsilon,
        epsilon_gaussian=gaussian_epsilon(ledger, tested.false_rate, tested.true_rate, setting.delta),
        confidence=setting.confidence,
        details=f"“in” for {tested.words('runs', 'the canary')}",
    )


def one_run(setting: Setting, *, canaries: int | None = None, seed: int | None = None) -> Audit:
    """Guess which of many gradient canaries were in a single run (Steinke, Nasr & Jagielski 2023).

    How many guesses to make is fixed beforehand: the number that would be best against the claimed mechanism, and
    three quarters of the canaries (about half of all are in, so the extremes are clear), with half the level each.
    The same guesses are held against the claimed curve (`tacit.audit.tradeoff`); a tenth of the canaries is guessed
    for it. If the noise is independent, as recorded, so are the canaries: their error rates then say most. The three
    bounds hold one by one, each with the confidence of the setting.
    """
    canaries = setting.records if canaries is None else canaries
    check_count("canaries", canaries, 10, setting.records)
    included = coins(canaries, _source(seed))
    done = run_with_canaries(setting, included, _seed(seed, 0))
    level = 1 - setting.confidence
    counts = (_guesses(setting, canaries, level), canaries * 3 // 4)
    epsilon, count, right = best_guess(done.scores, included, counts, setting.delta, level)
    few = max(2, canaries // 10)
    tested = _tests(setting, done.scores[included == 0], done.scores[included == 1], level)
    return Audit(
        attack="one run, gradient canaries",
        claim=claim_of(done.ledger, setting.delta),
        epsilon=epsilon,
        epsilon_gaussian=one_run_curve_epsilon(
            done.ledger,
            canaries=canaries,
            guesses=few,
            correct=right_guesses(done.scores, included, few),
            delta=setting.delta,
            level=level,
        ),
        epsilon_independent=gaussian_epsilon(done.ledger, tested.false_rate, tested.true_rate, setting.delta),
        confidence=setting.confidence,
        details=f"{right} of {count} guesses right about {canaries} canaries",
    )


@dataclass(frozen=True, kw_only=True)
class _Tested:
    """The best test of several: bounds of its error rates that hold together, and ε from the best for that."""

    epsilon: float
    false_rate: float
    true_rate: float
    right: tuple[int, int]
    wrong: tuple[int, int]

    def words(self, trials: str, subject: str) -> str:
        return (
            f"{self.right[0]} of {self.right[1]} {trials} with {subject} and {self.wrong[0]} of {self.wrong[1]} without"
        )


def _tests(setting: Setting, absent: Floats, present: Floats, level: float) -> _Tested:
    """Test "the score is above the threshold" at thresholds fixed beforehand; all bounds hold at once."""
    thresholds = _thresholds(setting, max(1, (absent.size + present.size) // 2))
    each = level / (2 * len(thresholds))  # two error rates at each threshold hold at once
    found = []
    for threshold in thresholds:
        wrong, right = int((absent > threshold).sum()), int((present > threshold).sum())
        most, least = at_most(wrong, absent.size, each), at_least(right, present.size, each)
        tested = _Tested(
            epsilon=distinguishing_epsilon(most, least, setting.delta),
            false_rate=most,
            true_rate=least,
            right=(right, present.size),
            wrong=(wrong, absent.size),
        )
        found.append((_separation(most, least), tested))
    best = max(found, key=lambda pair: pair[0])[1]
    return replace(best, epsilon=max(tested.epsilon for _, tested in found))


def _source(seed: int | None) -> Source:
    return SecureSource() if seed is None else SeededSource(seed)


def _seed(seed: int | None, number: int) -> int | None:
    """A seed of its own for each run, and none of them that of the coins."""
    return None if seed is None else (seed + 1) * 10**8 + number


def _ideal_scores(setting: Setting, included: float, size: int = _SIMULATED) -> Floats:
    """Scores as the claimed mechanism would give them. Not secret: they only choose the test."""
    generator = np.random.default_rng(int(included))
    rate, multiplier = setting.lot_size / setting.records, setting.noise_multiplier
    scores = np.zeros(size)
    for _ in range(setting.steps):
        drawn = generator.random(size) < rate * included
        scores += log_ratio(generator.standard_normal(size) + drawn / multiplier, rate, multiplier)
    return scores


def _thresholds(setting: Setting, runs: int) -> list[float]:
    """Those with the best bounds, of either kind, if ``runs`` runs of each data set come out as the claim has it.

    A broken mechanism has other scores, and the best threshold for the claimed one may be far from all of them: some
    usual ones are tried besides.
    """
    below, above = _ideal_scores(setting, 0.0), _ideal_scores(setting, 1.0)
    level = (1 - setting.confidence) / (2 * (2 + len(_USUAL)))
    tests = []
    for threshold in np.quantile(np.concatenate([below, above]), np.linspace(0.02, 0.98, 97)).tolist():
        wrong, right = round(float((below > threshold).mean()) * runs), round(float((above > threshold).mean()) * runs)
        most, least = at_most(wrong, runs, level), at_least(right, runs, level)
        tests.append((_separation(most, least), distinguishing_epsilon(most, least, setting.delta), threshold))
    usual = np.quantile(np.concatenate([below, above]), _USUAL).tolist()
    return sorted({max(tests)[2], max(tests, key=lambda test: test[1])[2], *usual})


def _separation(false_rate: float, true_rate: float) -> float:
    """Return the distance, in standard deviations, of two Gaussians that a test with these rates tells apart."""
    least, most = (min(max(rate, 1e-12), 1 - 1e-12) for rate in (true_rate, false_rate))
    return float(ndtri(least) - ndtri(most))


def _guesses(setting: Setting, canaries: int, level: float) -> int:
    """Return the number of guesses that would prove most if the mechanism is the claimed one."""
    generator = np.random.default_rng(2)
    included = (np.arange(canaries) % 2).astype(np.float64)
    scores = np.where(included > 0, *(_ideal_scores(setting, each, canaries) for each in (1.0, 0.0)))
    mixed = generator.permutation(canaries)
    scores, included = scores[mixed], included[mixed]
    best = (-1.0, canaries)
    for count in sorted({max(2, canaries * part // 50) for part in range(1, 51)}):
        right = right_guesses(scores, included, count)
        best = max(best, (one_run_epsilon(canaries, count, right, setting.delta, level), count))
    return best[1]
