"""Theorem D.1 of Abadi et al. 2016 (Gupta et al. 2010): reaching a known target, paid for by the validation set.

**Which guarantee this is.** Let M be ε-differentially private, and let q(d, r), of sensitivity 1, be how many records
of a validation set the result r labels rightly. If one run of M reaches q >= Q with chance p, there is a mechanism M'
that calls M several times and, with chance 1 - δ, gives a result with q >= Q - loss. M' is (ε + 8ε')-DP.

* *For a record of the validation set* that is not trained on, M costs nothing, ε = 0, and M' costs 8ε'. This is the
  claim of the paper's example (cost 4) and the one this module states.
* *For a training record* the theorem says ε + 8ε', and the paper remarks max(ε, 8ε'), where ε is a *pure* guarantee,
  with δ = 0. Gaussian noise, hence DP-SGD, has none, so here the theorem says nothing about them. Nor can it be had for
  less than about 2ε by a rule that treats runs of equal score alike, however the runs are scored: let M(d) reach the
  target by the results r and s with chances a and b, much smaller than 1, and M(d') with a·e^-ε and b·e^ε. Among the
  runs that reach it r then has the share a/(a+b) with d and a·e^-ε/(a·e^-ε + b·e^ε) with d', and the ratio of these
  tends to e^2ε as a/b falls. Training records are therefore charged by `tacit.tuning.try_all` or
  `tacit.tuning.choose`, never by this theorem.
* δ here is a chance to miss the target. It is not the δ of differential privacy.
* The number of calls grows as the square of 1/(ε'δp): 9·10^11 for the paper's 6,700 settings. The theorem says that
  the price exists, not that anybody can run it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TargetSearch:
    """The numbers of Theorem D.1, for ``settings`` of which at least one reaches the target: p = 1/settings.

    The theorem is stated for 0 < ε' < 1/2; the paper's own example puts in 1/2, which is allowed here.

    >>> search = TargetSearch(epsilon_prime=0.5, failure=0.05, settings=6700)
    >>> search.validation_epsilon, search.loss < 100
    (4.0, True)
    """

    epsilon_prime: float
    failure: float
    settings: int

    def __post_init__(self) -> None:
        _check(self.epsilon_prime, self.failure)
        if isinstance(self.settings, bool) or not isinstance(self.settings, int) or self.settings < 1:
            raise ValueError(f"settings is {self.settings!r}; it must be a whole number, at least 1.")

    @property
    def validation_epsilon(self) -> float:
        """8ε': the pure ε of M' for one record of the validation set."""
        return 8 * self.epsilon_prime

    @property
    def loss(self) -> float:
        """(4/ε') log(1/(ε'δp)): by how many validation records the result may fall short of the target Q."""
        return 4 / self.epsilon_prime * math.log(self._odds)

    @property
    def calls(self) -> float:
        """(1/(ε'δp))² log(1/(ε'δp)): how often M is run."""
        return self._odds**2 * math.log(self._odds)

    @property
    def _odds(self) -> float:
        return self.settings / (self.epsilon_prime * self.failure)


def most_settings(*, loss: float, epsilon_prime: float, failure: float) -> int:
    """How many settings can be tried while falling short of the target by less than ``loss`` validation records.

    The paper's example: Q = 9,500 of 10,000, one per cent of which may be lost; "6,700" is this number rounded.

    >>> most_settings(loss=100, epsilon_prime=0.5, failure=0.05)
    6708
    """
    _check(epsilon_prime, failure)
    if not 0 < loss < math.inf:
        raise ValueError(f"loss is {loss!r}; it must be a finite number of records above 0.")
    power = loss * epsilon_prime / 4 + math.log(epsilon_prime * failure)
    if power > 700:
        raise ValueError(f"loss is {loss!r}; so much allows more settings than can be counted: ask for less.")
    return math.ceil(math.exp(power)) - 1


def _check(epsilon_prime: float, failure: float) -> None:
    if not 0 < epsilon_prime <= 0.5:
        raise ValueError(f"epsilon_prime is {epsilon_prime!r}; it must be in (0, 1/2].")
    if not 0 < failure < 1:
        raise ValueError(f"failure is {failure!r}; it must be in (0, 1).")
