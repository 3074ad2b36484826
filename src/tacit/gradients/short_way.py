"""The compiled short way of operations about which everything is decided (`_calls/following.h`).

It makes the comparisons of `remembered.Decisions.premises`, and leaves whatever is not as it was to `Recorder.handle`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit._compiled import kernels
from tacit.gradients.call_sites import SITES, site
from tacit.gradients.kinds import FLAGS
from tacit.gradients.remembered import VALUES, Form
from tacit.gradients.torch_internals import carry_out, in_transform, set_eval_frame
from tacit.gradients.traced import Traced, follow

LONG_WAY = Traced.__torch_function__
"""The same without compiled code."""


def take() -> None:
    """Have operations on tensors of the batch arrive at the compiled code first, where there is any."""
    if hasattr(kernels, "follow_with"):  # or it was compiled from older sources
        classes = Traced, Tensor, nn.Parameter, Form, VALUES, FLAGS
        asked = carry_out, in_transform, set_eval_frame, torch.is_grad_enabled, SITES, site
        kernels.follow_with(*classes, *asked, follow)  # type: ignore[union-attr]
        Traced.__torch_function__ = kernels.follow  # type: ignore[union-attr, method-assign, assignment]


take()
