"""Classify film reviews privately: `python examples/text_classifier.py ngrams|transformer EPSILON` (0: not private).

Two models of rt-polarity (Pang & Lee 2005): a linear one on hashed words and pairs of words, and a small transformer
on hashed words. Hashing needs no vocabulary, so nothing is learned from the records before the private run. The test
set is a tenth of the sentences. The settings were chosen on a tenth of the training sentences, which is not charged:
allowed for a public benchmark only.
"""

from __future__ import annotations

import json
import sys
import zlib
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.data.places import places

LENGTH, PAIRS = 24, True
SETTINGS: dict[str, dict[str, Any]] = {
    "ngrams": {"bits": 14, "epochs": 30, "lot_size": 2000, "rate": 2.0, "clip": 1.0},
    "transformer": {"bits": 12, "epochs": 20, "lot_size": 1000, "rate": 0.5, "clip": 1.0},
}


def sentences() -> tuple[list[str], Tensor]:
    """Return the reviews and whether each is positive, in an order that does not depend on either."""
    found = []
    for place in places():
        if (place / "text" / "rt-polarity.pos").exists():
            for label, name in ((1, "rt-polarity.pos"), (0, "rt-polarity.neg")):
                lines = (place / "text" / name).read_text(encoding="latin-1").splitlines()
                found += [(zlib.crc32(line.encode()), line, label) for line in lines]
            break
    else:
        raise ValueError("text/rt-polarity.pos is not here; put it into a directory and set TACIT_DATA to that.")
    found.sort()
    return [line for _, line, _ in found], torch.tensor([label for _, _, label in found])


def hashed(word: str, bits: int) -> int:
    """Return the place of a word, the same for every data set; 0 is for padding."""
    return 1 + zlib.crc32(word.encode()) % ((1 << bits) - 1)


def encoded(kind: str, lines: list[str], bits: int) -> Tensor:
    """Return the input of a model: counts of words and pairs with norm 1, or the places of the first words."""
    rows = torch.zeros(len(lines), 1 << bits) if kind == "ngrams" else torch.zeros(len(lines), LENGTH, dtype=torch.long)
    for row, line in zip(rows, lines, strict=True):
        words = [word for word in line.split() if word.isalpha() and len(word) > 2]  # a rule that no record decided
        if kind == "ngrams":
            pairs = [" ".join(pair) for pair in pairwise(words)] if PAIRS else []
            for word in {*words, *pairs}:
                row[hashed(word, bits)] += 1
        else:
            places = [hashed(word, bits) for word in words[:LENGTH]]
            row[: len(places)] = torch.tensor(places)
    return F.normalize(rows, dim=1) if kind == "ngrams" else rows


class Transformer(nn.Module):
    """Words and places, one layer of attention, the mean over the words, a linear head."""

    def __init__(self, bits: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(1 << bits, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of both classes."""
        empty = tokens == 0
        seen = self.layer(self.words(tokens) + self.places, src_key_padding_mask=empty)
        mean = seen.masked_fill(empty[..., None], 0.0).sum(1) / (~empty).sum(1, keepdim=True).clamp(min=1)
        scores: Tensor = self.head(mean)
        return scores


def train(kind: str, x: Tensor, y: Tensor, epsilon: float, **changed: Any) -> tuple[nn.Module, float]:
    """Train at a budget, or without privacy at 0; return the model and the ε that was spent."""
    chosen = SETTINGS[kind] | changed
    model: nn.Module = nn.Linear(x.shape[1], 2) if kind == "ngrams" else Transformer(chosen["bits"])
    optimizer = torch.optim.SGD(model.parameters(), lr=chosen["rate"], momentum=0.9)
    if not epsilon:
        for _ in range(chosen["epochs"]):
            for rows in torch.randperm(len(x)).split(chosen["lot_size"]):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
        return model, 0.0
    run = tacit.make_private(
        model,
        optimizer,
        TensorDataset(x, y),
        lot_size=min(chosen["lot_size"], len(x)),
        epochs=chosen["epochs"],
        clipping=chosen["clip"],
        budget=tacit.Budget(epsilon, 0.1 / len(x)),
        batch_size=250,
        purpose=f"film reviews, {kind}",
    )
    for rows, labels in run.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    run.close()
    return model, run.guarantee().epsilon


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of right answers."""
    with torch.no_grad():
        return float(torch.cat([model(part).argmax(1) for part in x.split(500)]).eq(y).float().mean())


def main(kind: str, epsilon: float, *, validate: bool = False, **changed: Any) -> dict[str, Any]:
    """Train on nine tenths and return the accuracy on the rest."""
    lines, y = sentences()
    x = encoded(kind, lines, (SETTINGS[kind] | changed)["bits"])
    tenth = len(y) // 10
    if validate:
        x, y = x[tenth:], y[tenth:]
    model, spent = train(kind, x[tenth:], y[tenth:], epsilon, **changed)
    return {"kind": kind, "epsilon": spent, "accuracy": accuracy(model, x[:tenth], y[:tenth]), "n": len(y) - tenth}


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SETTINGS:
        sys.exit(__doc__)
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]))))
