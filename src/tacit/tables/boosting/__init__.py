"""Private boosting of tables: see `tacit.tables.boosting.rounds`."""

from tacit.tables.boosting.boost import boost, stage_kept
from tacit.tables.boosting.cells import Cells, axes
from tacit.tables.boosting.plan import BoostSettings, boost_settings, planned, weight_left
from tacit.tables.boosting.shapes import Shapes, exported

__all__ = [
    "BoostSettings",
    "Cells",
    "Shapes",
    "axes",
    "boost",
    "boost_settings",
    "exported",
    "planned",
    "stage_kept",
    "weight_left",
]
