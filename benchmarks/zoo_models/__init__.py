"""Models that others wrote, in small random configurations, with a batch and the loss their documentation shows."""

from __future__ import annotations

import importlib

from zoo_models.cases import Case, Entry, registry

FAMILIES = (
    "causal",
    "encoders",
    "seq2seq",
    "media",
    "adapters",
    "timm_models",
    "torchvision_models",
    "graphs",
    "plain_sequences",
    "plain_images",
    "plain_generative",
    "plain_losses",
    "tutorial_sequences",
    "tutorial_losses",
    "tutorial_nets",
    "tutorial_sets",
    "special",
    "compilers",
    "tensors",
    "walked",
    "stranger_nets",
    "stranger_weights",
    "stranger_losses",
    "stranger_matching",
    "stranger_functions",
    "stranger_modules",
    "stranger_loops",
    "stranger_packages",
    "visitor_texts",
    "visitor_items",
    "visitor_images",
    "visitor_points",
    "visitor_flows",
    "visitor_tables",
    "mixing",
    "mixing_losses",
    "stranger_mixing",
    "stranger_mistakes",
    "visitor_mistakes",
)


def load() -> dict[str, Entry]:
    """Return every entry by name, in the order of the families."""
    for family in FAMILIES:
        importlib.import_module(f"zoo_models.{family}")
    return registry


__all__ = ["FAMILIES", "Case", "Entry", "load"]
