"""One run against the whole curve ε(δ) that is claimed, not only against one point of it.

*Setting.* Each of m canaries is in or out by a fair coin, independently; the mechanism runs once; from its output an
attacker guesses exactly r of the coins. W counts the right guesses.

*Premise.* The curve δ(ε) holds for the mechanism in both directions of add/remove. For every event A, with P and Q the
two neighbouring laws, P(A) <= e^ε Q(A) + δ(ε), and the same for the complement of A with P and Q exchanged. So
P(A) <= b(Q(A)), where b is the least of those lines: increasing and concave.

*Theorem* (Mahloujifar, Melis & Chaudhuri 2024). With p_i = P[W = i] and for every c,

    sum_{i >= c} (i/m) p_i  <=  b( sum_{i >= c-1} ((r-i)/m) p_i ).

*Proof.* Fix a canary j, its coin u and all other coins. A is the event that j is guessed as u and that at least c - 1
of the others are right. With j's coin turned round, which is a neighbouring data set, A is the event that j is guessed
wrong and at least c - 1 others are right. Hence P[j right, W >= c] <= b(P[j wrong, W >= c - 1]) for these coins. Take
the mean over coins and canaries: b is concave (Jensen), W of the canaries are right, and r - W are wrong.

*Use.* Let R_c and H_c be the two sums over i >= c: R_{c+1} <= b(H_c), that is H_c >= a(R_{c+1}) with a the inverse of
b. If P[W >= v] >= t, then R_v and H_v are no less than if all of it were at v, in the sense below; `refuted` goes down
from v and puts as little mass as the inequality allows on each number below. It ends with a lower bound of R_0 + H_0,
which is r/m for any law of W. If the bound is larger, P[W >= v] >= t is impossible under the claimed curve.

*Why the recursion is a lower bound.* Write r_i, h_i for its values, e_i = R_i - r_i and d_i = H_i - h_i. Three facts
hold at i = v and pass from i + 1 to i: (1) e_i >= 0; (2) e_i >= d_i i/(r-i); (3) e_i + d_i >= 0. At v they say that the
tail weighs t or more and lies at v or above. A step adds x = (r-i) p_i/m to H and x i/(r-i) to R, the recursion y and y
i/(r-i). Then e_i - d_i i/(r-i) = e_{i+1} - d_{i+1} i/(r-i) >= 0, by (2) if d_{i+1} > 0, because i/(r-i) grows with i,
and by (1) otherwise. If y = 0, (1) and (3) are as before or better. If y > 0, h_i = a(r_{i+1}) <= a(R_{i+1}) <= H_i by
(1), so d_i >= 0, (1) follows from (2), and (3) from both. At 0, fact (3) is the claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDING = 1e-9  # relative: what a refutation must have to spare


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """A curve: pairs of ε and an upper bound of δ(ε), holding in both directions."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, epsilons: Sequence[float], deltas: Sequence[float]) -> TradeOff:
        """Return the curve through ``deltas`` at ``epsilons``."""
        return cls(points=tuple(zip(epsilons, deltas, strict=True)))

    def most(self, probability: float) -> float:
        """Return b: the largest probability of an event whose probability under the neighbouring law is this."""
        lines = [1.0]
        for epsilon, delta in self.points:
            lines += [math.exp(epsilon) * probability + delta, 1 - math.exp(-epsilon) * (1 - delta - probability)]
        return min(lines)

    def least(self, probability: float) -> float:
        """Return a, the inverse of b: the least probability under the neighbouring law of an event that has this."""
        lines = [0.0]
        for epsilon, delta in self.points:
            lines += [math.exp(-epsilon) * (probability - delta), 1 - delta - math.exp(epsilon) * (1 - probability)]
        return max(lines)


def refuted(curve: TradeOff, *, canaries: int, guesses: int, correct: int, level: float) -> bool:
    """Return True if so many right guesses have probability below ``level`` under every mechanism with this curve."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} of {guesses} guesses about {canaries} canaries cannot be; the numbers must fall.")
    # The lines of `TradeOff.least` as slope and intercept: the loop below is most of an audit's time.
    lines = [(math.exp(-e), -math.exp(-e) * d) for e, d in curve.points]
    lines += [(math.exp(e), 1 - d - math.exp(e)) for e, d in curve.points]
    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
    limit = guesses / canaries * (1 + _ROUNDING)
    for count in range(correct - 1, -1, -1):
        needed = max(slope * right + intercept for slope, intercept in lines)
        if needed > wrong:
            right += (needed - wrong) * count / (guesses - count)
            wrong = needed
        if right + wrong > limit:
            return True
    return False
