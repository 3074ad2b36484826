"""Run a mixture of experts without reading which experts were chosen.

`transformers` loops over the experts that some token of the batch was sent to, or sorts all tokens by expert. Both
look at every example at once. This function computes the same sums: it visits every expert, and gives each the rows
of the tokens that were sent to it. A row stays its example's, and an expert without rows adds nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def experts_forward(module: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return each token's weighted sum over its experts.

    Args:
        module: an experts module of `transformers` (weights of all experts in one parameter).
        hidden: the tokens, [tokens, width].
        chosen: the numbers of each token's experts, [tokens, k].
        weights: their weights, [tokens, k].
    """
    out = torch.zeros_like(hidden)
    for expert in range(module.num_experts):
        sent = chosen == expert
        rows = sent.any(-1)
        found = _expert(module, expert, hidden[rows])
        weight = (weights * sent).sum(-1)[rows]
        out[rows] = out[rows] + (found * weight.unsqueeze(-1)).to(out.dtype)
    return out


def switch_experts_forward(original: Any, module: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return each token's weighted output of its expert in Switch Transformers; `chosen` is [tokens, 1, experts]."""
    out = torch.zeros_like(hidden)
    for expert in range(module.num_experts):
        rows = chosen[:, 0, expert] == 1
        out[rows] = (module[f"expert_{expert}"](hidden[rows]) * weights[rows]).to(out.dtype)
    return out


def _expert(module: Any, expert: int, x: Tensor) -> Tensor:
    first = "gate_up_proj" if module.has_gate else "up_proj"
    inner = _linear(module, first, expert, x)
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    out = _linear(module, "down_proj", expert, inner)
    return module.post_expert_norm(out) if module.has_post_expert_norm else out


def _linear(module: nn.Module, name: str, expert: int, x: Tensor) -> Tensor:
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return F.linear(x, weight.mT if module.is_transposed else weight, bias)
