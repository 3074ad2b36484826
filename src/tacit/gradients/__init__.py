"""Gradients of single examples: their norms and their clipped sum, at nearly the price of ordinary training.

Given a model and the losses ℓ_i of a batch, the engine delivers Σ_i w_i·∇ℓ_i, where the weight w_i depends on the norms
of ∇ℓ_i alone, in one forward and one backward pass and without holding all the ∇ℓ_i:

>>> import torch
>>> from torch import nn
>>> from torch.nn import functional as F
>>> from tacit import gradients
>>> class Flat:
...     def partition(self, shapes):
...         return [tuple(shapes)]
...     def weights(self, norms):
...         return (0.1 / norms).clamp(max=1.0)
>>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
>>> x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
>>> with gradients.record(model) as tape:
...     loss = F.cross_entropy(model(x), y)
...     loss.backward()
>>> tape.norms().shape
torch.Size([16])
>>> total = tape.clipped_sum(Flat())
>>> sorted(total)
['0.bias', '0.weight', '2.bias', '2.weight']

`record` serves one batch; `attach` stays on the model through an ordinary training loop:

>>> engine = gradients.attach(model)
>>> F.cross_entropy(model(x), y).backward()
>>> total = engine.clipped_sum(Flat())
>>> engine.detach()

How it works. The model's inputs enter as tensors that know which example each entry belongs to, and every operation on
them passes the engine. An operation with a parameter is run on a detached copy of it, so that autograd computes
activation gradients only; its input and the gradient of its output are kept, and from these follow every example's
squared norm and, once the weights are known, the weighted sum. An operation that would mix examples is refused.

What the losses ℓ_i are. The loss is L = Σ_i ℓ_i or (1/batch)·Σ_i ℓ_i, as the operation that reduced over the examples
says; where that does not settle it, `reduction` must be declared. The sum is never scaled by the batch's own size.
"""

from tacit.gradients import torch_version  # noqa: I001, F401 (first: older versions fail on what the others import)

from tacit.gradients.check import check
from tacit.gradients.clipping import Clipping
from tacit.gradients.engine import Engine, Tape, attach, record

__all__ = ["Clipping", "Engine", "Tape", "attach", "check", "record"]
