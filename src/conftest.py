"""Doctests are collected by importing: what needs an extra that is not installed is left out."""

import importlib.util

_NEEDED = {"flwr": "tacit/flower/*", "nvflare": "tacit/flare/*", "transformers": "tacit/integrations/transformers.py"}
_NEEDED["lightning"] = "tacit/integrations/lightning.py"
collect_ignore_glob = [files for package, files in _NEEDED.items() if not importlib.util.find_spec(package)]
