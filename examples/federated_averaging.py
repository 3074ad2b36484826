"""Federated averaging with user-level privacy: a character model from the speakers of Shakespeare's plays.

Every speaker is a user who keeps their lines. In a round a random few take part: each trains the current model on
their own lines for a few steps and hands in the change, clipped; the server adds up the changes with noise and moves
the model by their mean (McMahan et al. 2018). What comes out says little about any one speaker, however much they say.

With some two hundred users (their number is taken to be public) the price of privacy is steep: ε is far from small.
Phones come in millions.

    python examples/federated_averaging.py [--quick]
"""

import argparse
import math
import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import tacit
from tacit.accounting import Filter
from tacit.ledger import Header, Step
from tacit.mechanisms import remaining
from tacit.randomness import SecureSource
from tacit.sampling import PoissonSampler

parser = argparse.ArgumentParser(description="Federated averaging with user-level privacy.")
parser.add_argument("--quick", action="store_true", help="a few rounds only, in under 20 seconds")
quick = parser.parse_args().quick
torch.set_num_threads(1)

# 1. The users: every speaker with at least 200 characters, and what they say.
places = [os.environ.get("TACIT_DATA"), Path(__file__).parents[1] / "../shared/data", "~/.cache/tacit"]
files = [Path(place).expanduser() / "text/tinyshakespeare.txt" for place in places if place]
file = next((file for file in files if file.exists()), None)
if file is None:
    print("There is no text/tinyshakespeare.txt; put it in ~/.cache/tacit, or set TACIT_DATA to the folder with text/.")
    sys.exit(0)
lines: dict[str, list[str]] = {}
for paragraph in file.read_text(encoding="utf-8").split("\n\n"):
    name, colon, speech = paragraph.partition(":\n")
    if colon and "\n" not in name:
        lines.setdefault(name.strip().upper(), []).append(speech)
alphabet = "\n !$&',-.3:;?" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "abcdefghijklmnopqrstuvwxyz"  # public
number = {letter: index for index, letter in enumerate(alphabet)}
texts = [torch.tensor([number[c] for c in "\n".join(said) if c in number]) for said in lines.values()]
users = [text for text in texts if len(text) >= 200]

# 2. The model: three letters to the next. Small, for noise grows with the number of weights.
context = 3


class Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(len(alphabet), 8), nn.Linear(8 * context, len(alphabet))

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(windows).flatten(1))


model = Letters()
weights = parameters_to_vector(model.parameters()).detach()


def excerpt(text: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A piece of a user's text: windows of letters, and the letter after each."""
    start = int(torch.randint(max(len(text) - length, 1), ()))
    windows = text[start : start + length].unfold(0, context + 1, 1)
    return windows[:, :-1], windows[:, -1]


# 3. What is released each round: the sum of the changes, and the sum of the users' losses, to see how it goes.
rounds, lot_size, clip_norm = (6, 60, 1.0) if quick else (60, 60, 1.0)
budget = tacit.Budget(epsilon=10.0, delta=1e-3)
plan = tacit.plan(records=len(users), lot_size=lot_size, steps=rounds, epsilon=budget.epsilon, delta=budget.delta)
z, level = plan.noise_multiplier, math.log(len(alphabet))
gain = tacit.SumQuery(group="gain", clip_norm=2.0, noise_std=2.0 * 4 * z)  # nats below a guess at random
change = tacit.SumQuery(group="change", clip_norm=clip_norm, noise_std=clip_norm * remaining(z, [gain.event()]))

source = SecureSource()
sampler = PoissonSampler(len(users), lot_size / len(users), source=source, unit="user")
ledger = tacit.Ledger(Header(unit="user", purpose="federated averaging of speakers"))
ledger.guard(Filter(budget))  # no round that would overrun the budget
print(f"{len(users)} users, {weights.numel()} weights, {rounds} rounds, noise multiplier {z:.2f}")

# 4. The rounds.
speed, recent = torch.zeros_like(weights), []
for turn in range(1, rounds + 1):
    receipt = ledger.record(Step(sampler.event(), (change.event(), gain.event())))
    changes, gains = change.total((weights.numel(),)), gain.total()
    for user in sampler.draw(receipt):
        vector_to_parameters(weights.clone(), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for local in range(5):
            windows, following = excerpt(users[user], 200)
            loss = F.cross_entropy(model(windows), following)
            if local == 0:
                gains.add((level - loss.detach())[None])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        changes.add((parameters_to_vector(model.parameters()).detach() - weights)[None])
    mean = changes.mean(receipt, source, lot_size=sampler.expected).float()
    recent = [*recent[-9:], level - float(gains.mean(receipt, source, lot_size=sampler.expected))]
    speed = 0.8 * speed + mean
    weights = weights + speed
    if turn % (2 if quick else 6) == 0:
        loss = sum(recent) / len(recent)
        print(f"round {turn:3d}  loss {loss:.2f} nats a letter (private; mean of {len(recent)} rounds)")

# 5. What it cost. The model and every number printed above are covered.
print(tacit.account(ledger, delta=budget.delta))
