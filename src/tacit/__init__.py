"""Tacit: train on data about people, and prove how little the result says about any one of them."""

from tacit._version import __version__

__all__ = ["__version__"]
