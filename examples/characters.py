"""Learn to write like Shakespeare, privately: `python examples/characters.py EPSILON` (0: not private).

A small network predicts each character of a line from the six before it; each line is a record. The last tenth of the
lines is the test set; the figure is bits for each character, the end of the line included. The alphabet is ASCII, so
that nothing is learned from the records beforehand. The learning rate was chosen of two on a tenth of the training
lines, which is not charged: allowed for a public benchmark only.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.data.places import places

LENGTH, SYMBOLS = 64, 97  # 0: outside of the line; 1: its end; then the 95 characters of ASCII that can be seen
SETTINGS: dict[str, Any] = {"epochs": 3, "lot_size": 1000, "rate": 1.0, "clip": 1.0}


def text() -> list[str]:
    """Return the lines of the text, empty ones left out."""
    for place in places():
        if (place / "text" / "tinyshakespeare.txt").exists():
            found = (place / "text" / "tinyshakespeare.txt").read_text(encoding="ascii")
            return [line for line in found.splitlines() if line.strip()]
    raise ValueError("text/tinyshakespeare.txt is not here; put it into a directory and set TACIT_DATA to that.")


def encoded(lines: list[str]) -> Tensor:
    """Return one row of symbols for each line, cut at ``LENGTH``: a start, the characters, the end, padding."""
    rows = torch.zeros(len(lines), LENGTH + 1, dtype=torch.long)
    for row, line in zip(rows, lines, strict=True):
        symbols = [min(max(ord(character) - 30, 2), SYMBOLS - 1) for character in line[: LENGTH - 1]]
        row[1 : len(symbols) + 2] = torch.tensor([*symbols, 1])
    return rows


class Window(nn.Module):
    """The last ``reach`` characters in an embedding, one hidden layer and a linear head (Bengio et al. 2003)."""

    def __init__(self, reach: int = 6, width: int = 128) -> None:
        super().__init__()
        self.reach = reach
        self.symbols = nn.Embedding(SYMBOLS, 16)
        self.hidden = nn.Linear(16 * reach, width)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        known = self.symbols(F.pad(x, (self.reach - 1, 0)))
        seen = torch.cat([known[:, place : place + length] for place in range(self.reach)], dim=2)
        scores: Tensor = self.head(torch.tanh(self.hidden(seen)))
        return scores


def line_losses(model: nn.Module, rows: Tensor) -> Tensor:
    """Return the loss of each line in nats, added up over its characters."""
    scores = model(rows[:, :-1])
    return F.cross_entropy(scores.transpose(1, 2), rows[:, 1:], ignore_index=0, reduction="none").sum(1)


def train(rows: Tensor, epsilon: float, **changed: Any) -> tuple[nn.Module, float]:
    """Train at a budget, or without privacy at 0; return the model and the ε that was spent."""
    chosen = SETTINGS | changed
    model = Window()
    optimizer = torch.optim.SGD(model.parameters(), lr=chosen["rate"], momentum=0.9)
    if not epsilon:
        for _ in range(chosen["epochs"]):
            for lines in torch.randperm(len(rows)).split(chosen["lot_size"]):
                optimizer.zero_grad()
                (line_losses(model, rows[lines]) / LENGTH).mean().backward()
                optimizer.step()
        return model, 0.0
    run = tacit.make_private(
        model,
        optimizer,
        TensorDataset(rows),
        lot_size=min(chosen["lot_size"], len(rows)),
        epochs=chosen["epochs"],
        clipping=chosen["clip"],
        budget=tacit.Budget(epsilon, 0.1 / len(rows)),
        batch_size=250,
        purpose="Shakespeare by lines",
    )
    for (lines,) in run.batches():
        optimizer.zero_grad()
        (line_losses(model, lines) / LENGTH).mean().backward()
        optimizer.step()
    run.close()
    return model, run.guarantee().epsilon


def bits(model: nn.Module, rows: Tensor) -> float:
    """Return the mean loss of a character in bits."""
    with torch.no_grad():
        total = sum(float(line_losses(model, part).sum()) for part in rows.split(500))
    return total / int((rows[:, 1:] > 0).sum()) / math.log(2)


def main(epsilon: float, *, validate: bool = False, **changed: Any) -> dict[str, Any]:
    """Train on the first nine tenths of the lines and return the bits for a character of the rest."""
    rows = encoded(text())
    tenth = len(rows) // 10
    if validate:
        rows = rows[:-tenth]
    model, spent = train(rows[:-tenth], epsilon, **changed)
    return {"epsilon": spent, "bits": bits(model, rows[-tenth:]), "n": len(rows) - tenth}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(json.dumps(main(float(sys.argv[1]))))
