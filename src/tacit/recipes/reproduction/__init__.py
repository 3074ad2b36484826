"""The papers' tables and figures, computed again: ours beside theirs."""

from tacit.recipes.reproduction.experiment import Comparison, Experiment, Line, Panel, Result, Setting
from tacit.recipes.reproduction.registry import EXPERIMENTS, find

__all__ = ["EXPERIMENTS", "Comparison", "Experiment", "Line", "Panel", "Result", "Setting", "find"]
