"""The compiled short way of operations about which everything is decided (`_calls/following.h`).

It leaves whatever is not decided to `Recorder.handle`, with the premises by which it will be found again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit._compiled import kernels
from tacit.gradients.call_sites import SITES, site
from tacit.gradients.kinds import FLAGS
from tacit.gradients.remembered import VALUES, Form, entries
from tacit.gradients.torch_internals import carry_out, in_transform, set_eval_frame
from tacit.gradients.traced import Traced, follow


def take() -> None:
    """Have operations on tensors of the batch arrive at the compiled code first, where there is any."""
    classes = Traced, Tensor, nn.Parameter, Form, VALUES, FLAGS
    asked = carry_out, in_transform, set_eval_frame, torch.is_grad_enabled, SITES, site, entries
    parts = (*classes, *asked, follow)
    if kernels is not None and getattr(kernels, "follow_takes", 0) == len(parts):  # else it was built of older sources
        kernels.follow_with(*parts)
        Traced.__torch_function__ = kernels.follow  # type: ignore[method-assign, assignment]


take()
