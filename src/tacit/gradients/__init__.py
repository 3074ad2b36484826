"""Gradients of single examples: their norms and their clipped sum, at nearly the price of ordinary training."""

from tacit.gradients.clipping import Clipping
from tacit.gradients.tape import Engine, Tape, attach, record

__all__ = ["Clipping", "Engine", "Tape", "attach", "record"]
