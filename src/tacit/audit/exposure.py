"""Secrets in a language model: exposure of canaries (Carlini, Liu, Erlingsson, Kos & Song 2019).

A canary is a line with random digits. Its *exposure* is log2 of the number of candidates minus log2 of its rank among
them by the model's loss: 0 bits if it is the least likely, all the bits of the secret if it is the likeliest. The
candidates are the true digits and as many others, drawn alike.

*What DP allows.* A canary's digits are uniform over R candidates. If the line was not in training, its rank is uniform,
so P[exposure >= x] <= 2^-x. Under (ε, δ) for add/remove of one line, P[exposure >= x] <= e^ε 2^-x + δ if it was.

*Lower bound on ε.* Each canary is in or out by a fair coin and the exposures are the scores: `one_run_epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.accounting import Guarantee
from tacit.audit.bounds import best_guess
from tacit.audit.probe import claim_of, coins
from tacit.audit.setting import Setting, check_count
from tacit.randomness import Floats, SecureSource, SeededSource, Source
from tacit.training import make_private

_SYMBOLS, _PADDING, _BEGIN = 128, 0, 1
_CONTEXT, _WIDTH = 6, 32
_DIGITS = 6
_WORDS = ("the", "king", "and", "queen", "of", "france", "shall", "come", "to", "morrow", "with", "all", "his", "men")


class ByteModel(nn.Module):
    """A language model of bytes: each is predicted from the ``context`` before it, by one hidden layer."""

    def __init__(self, *, context: int = _CONTEXT, width: int = _WIDTH, hidden: int = 64) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(_SYMBOLS, width)
        self.hidden = nn.Conv1d(width, hidden, context)
        self.output = nn.Linear(hidden, _SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """Scores of the next symbol, (lines, places, symbols), for lines that begin with `context` marks."""
        maps = self.embedding(symbols[:, :-1]).transpose(1, 2)
        found: Tensor = self.output(torch.tanh(self.hidden(maps)).transpose(1, 2))
        return found

    def losses(self, symbols: Tensor) -> Tensor:
        """The sum over each line of the negative log likelihoods of its symbols; padding does not count."""
        scores, wanted = self(symbols), symbols[:, self.context :]
        each = F.cross_entropy(scores.transpose(1, 2), wanted, reduction="none")
        return (each * (wanted != _PADDING)).sum(dim=1)


def encoded(lines: Sequence[str], length: int, *, context: int = _CONTEXT) -> Tensor:
    """Return lines as symbols: `context` marks, the ASCII codes of at most ``length`` characters, padding."""
    rows = torch.full((len(lines), context + length), _PADDING)
    rows[:, :context] = _BEGIN
    for row, line in zip(rows, lines, strict=True):
        codes = torch.tensor(list(line.encode("ascii", errors="replace")[:length]), dtype=torch.long)
        row[context : context + len(codes)] = codes
    return rows


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Exposures of canaries that were in training and of those left out, beside the claim."""

    claim: Guarantee
    inside: tuple[float, ...]
    outside: tuple[float, ...]
    most: float
    epsilon: float
    confidence: float
    details: str

    @property
    def violated(self) -> bool:
        """True if the claim is refuted."""
        return self.epsilon > self.claim.epsilon

    def allowed(self, exposure: float) -> float:
        """Return the largest share of canaries in training with so much exposure that the claim allows."""
        return float(min(1.0, math.exp(min(self.claim.epsilon, 700)) * 2.0**-exposure + self.claim.delta))

    def __str__(self) -> str:
        lines = [
            f"extraction canaries: {self.details}",
            f"  claimed  {self.claim}",
            f"  exposure of canaries in training {np.mean(self.inside):.1f} bits on average, at most "
            f"{max(self.inside):.1f}; of those left out {np.mean(self.outside):.1f}, at most {max(self.outside):.1f}; "
            f"a secret is known at {self.most:.1f}",
            f"  audited  ε ≥ {math.floor(self.epsilon * 1000) / 1000:.3f} (lower bound, {self.confidence:.2%} "
            "confidence, no assumption)",
        ]
        lines.append("  VIOLATED: more was extracted than the claim allows." if self.violated else "  the claim stands")
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        return {
            "attack": "extraction canaries",
            "epsilon_claimed": self.claim.epsilon,
            "epsilon_audited": self.epsilon,
            "delta": self.claim.delta,
            "confidence": self.confidence,
            "violated": self.violated,
            "exposure_mean": float(np.mean(self.inside)),
            "exposure_left_out_mean": float(np.mean(self.outside)),
            "exposure_most_possible": self.most,
            "details": self.details,
        }


def exposures(losses: Floats) -> Floats:
    """Return each canary's exposure from losses (canaries, candidates), the true one first; ties count as worse."""
    ranks = 1 + (losses[:, 1:] <= losses[:, :1]).sum(axis=1)
    return np.asarray(math.log2(losses.shape[1]) - np.log2(ranks))


def language_run(
    setting: Setting,
    *,
    canaries: int = 40,
    repeats: int = 1,
    candidates: int = 1000,
    lines: Sequence[str] | None = None,
    model: Callable[[], ByteModel] = ByteModel,
    learning_rate: float = 0.5,
    seed: int | None = None,
) -> Exposure:
    """Train a language model of lines with canaries among them, and measure how exposed each canary is.

    A record is a line. ``repeats`` writes a canary into its line so often. ``lines`` are ordinary ones, public; without
    them they are made of a few words. The first ``canaries`` places are canaries, each in or out by a fair coin.
    """
    check_count("canaries", canaries, 10, setting.records)
    check_count("repeats", repeats, 1, 100)
    check_count("candidates", candidates, 2, 10**6)
    source = SecureSource() if seed is None else SeededSource(seed)
    wanted = setting.records - canaries
    ordinary = _ordinary(wanted, source) if lines is None else list(lines[:wanted])
    if len(ordinary) < wanted:
        raise ValueError(f"there are {len(ordinary)} lines; the setting needs {wanted} besides its canaries.")
    secrets = source.integers(10, canaries * candidates * _DIGITS).reshape(canaries, candidates, _DIGITS)
    written = [[_canary(number, digits, repeats) for digits in row] for number, row in enumerate(secrets)]
    length = max(len(line) for line in [*ordinary, written[0][0]])
    symbols = encoded([*(row[0] for row in written), *ordinary], length)
    included = coins(canaries, source)
    weights = torch.ones(setting.records)
    weights[:canaries] = torch.from_numpy(included).float()
    net = model()
    ledger = _train(net, TensorDataset(symbols, weights), setting, learning_rate, seed)
    with torch.no_grad():
        losses = np.stack([net.losses(encoded(row, length)).double().numpy() for row in written])
    found = exposures(losses)
    counts = (max(2, canaries // 4), max(2, canaries * 3 // 4))
    epsilon, count, right = best_guess(found, included, counts, setting.delta, 1 - setting.confidence)
    return Exposure(
        claim=claim_of(ledger, setting.delta),
        inside=tuple(found[included > 0].tolist()) or (0.0,),
        outside=tuple(found[included == 0].tolist()) or (0.0,),
        most=math.log2(candidates),
        epsilon=epsilon,
        confidence=setting.confidence,
        details=f"{right} of {count} guesses right about {canaries} canaries of {_DIGITS} digits, written {repeats}×",
    )


def _train(net: ByteModel, data: TensorDataset, setting: Setting, learning_rate: float, seed: int | None) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    run = make_private(
        net,
        optimizer,
        data,
        lot_size=setting.lot_size,
        steps=setting.steps,
        clipping=setting.clipping,
        noise_multiplier=setting.noise_multiplier,
        reduction="sum",
        seed=None if seed is None else (seed + 1) * 10**8,
    )
    for symbols, present in run.batches():
        (net.losses(symbols) * present).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    return run.ledger


def _canary(number: int, digits: Sequence[int], repeats: int) -> str:
    """Canary ``number`` with its digits: the beginning names it, so that canaries do not share a secret."""
    name = chr(97 + number % 26) + chr(97 + number // 26 % 26) + chr(97 + number // 676 % 26)
    return " ".join([f"{name} {''.join(map(str, digits))}"] * repeats)


def _ordinary(count: int, source: Source) -> list[str]:
    picked = source.integers(len(_WORDS), count * 5).reshape(count, 5)
    return [" ".join(_WORDS[place] for place in row) for row in picked]
