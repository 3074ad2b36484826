"""A loop of one's own: plan a private run, carry it out, and look at what it cost. Takes a few seconds.

Everything is written to runs/own-loop.
"""

import math
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import tacit
from tacit.accounting import guarantee
from tacit.reports.figures import epsilon_over_steps

out = Path("runs/own-loop")
shutil.rmtree(out, ignore_errors=True)
out.mkdir(parents=True)

# 1. Plan. How much noise do 40 epochs over 60,000 records need for ε = 2?
plan = tacit.plan(records=60_000, lot_size=600, epochs=40, epsilon=2.0, delta=1e-5)
print(f"plan: noise multiplier {plan.noise_multiplier:.3f} for {plan.steps} steps: {plan.guarantee}")

# 2. Train. A spiral of 20,000 made-up people in two classes, and an ordinary PyTorch loop with three changed lines.
turn = torch.rand(20_000) * 3 * math.pi
label = torch.randint(2, (20_000,))
points = torch.stack([turn.cos(), turn.sin()], dim=1) * (turn / 6 * (2 * label - 1))[:, None]
people = torch.utils.data.TensorDataset(points + 0.05 * torch.randn_like(points), label)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
run = tacit.make_private(
    model,
    optimizer,
    people,
    lot_size=2_000,
    epochs=30,
    clipping=tacit.Flat(0.5),
    budget=tacit.Budget(epsilon=2.0, delta=1e-5),
    metrics={"accuracy": tacit.Metric(bound=1.0)},
    ledger=out / "ledger.jsonl",
    purpose="example of a loop",
)
for x, y in run.batches():
    scores = model(x)
    F.cross_entropy(scores, y).backward()
    run.observe(accuracy=(scores.argmax(1) == y).float())
    optimizer.step()
    optimizer.zero_grad()
    if run.step % 100 == 0:
        print(f"step {run.step:3d}  accuracy (private) {run.metrics['accuracy']:.2f}  {run.guarantee()}")

# 3. Look. The ledger can be accounted again, by any accountant, at any time.
print("\nwhat was done, by each accountant:")
for name in ("pld", "rdp", "moments"):
    print(" ", tacit.account(run.ledger, delta=1e-5, accountant=name))
epsilon_over_steps(run.ledger.entries, run.ledger.header, delta=1e-5, path=out / "epsilon.png")
(out / "statement.txt").write_text(run.statement() + "\n")
assert guarantee(run.ledger.entries, run.ledger.header, delta=1e-5).epsilon <= 2.0

print(f"\nprivacy statement: {out / 'statement.txt'}")
print(f"ε over the steps:  {out / 'epsilon.png'}")
print(f"ledger:            {out / 'ledger.jsonl'}")
