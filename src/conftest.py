"""Doctests are collected by importing: what needs an extra that is not installed is left out."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["tacit/flower/*"]
