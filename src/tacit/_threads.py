"""Count the threads of PyTorch that may work on a compiled loop."""

from __future__ import annotations

import os

import torch

_forked = False


def threads() -> int:
    """One in a forked process: threads that its parent had started are not there, and would be waited for."""
    return 1 if _forked else torch.get_num_threads()


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
