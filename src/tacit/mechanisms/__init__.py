"""What is released about a sample: clipped sums with noise, and how both are chosen."""

from tacit.mechanisms.adaptive import Adaptive, AdaptiveClipping
from tacit.mechanisms.allocation import Allocation, DimensionAdjusted, Explicit, Proportional, remaining
from tacit.mechanisms.clipping import Automatic, DimensionWeighted, Flat, Groups, Joint, PerLayer, Strategy
from tacit.mechanisms.counts import CountsQuery
from tacit.mechanisms.groups import Clipping
from tacit.mechanisms.lattice import Discrete
from tacit.mechanisms.microbatch import Microbatches, Repeated, assign
from tacit.mechanisms.quantile import QuantileTracker
from tacit.mechanisms.sparse_vector import Chosen, SparseVectorQuery
from tacit.mechanisms.sums import LaplaceQuery, SumQuery, Total, WeightedMean

__all__ = [
    "Adaptive",
    "AdaptiveClipping",
    "Allocation",
    "Automatic",
    "Chosen",
    "Clipping",
    "CountsQuery",
    "DimensionAdjusted",
    "DimensionWeighted",
    "Discrete",
    "Explicit",
    "Flat",
    "Groups",
    "Joint",
    "LaplaceQuery",
    "Microbatches",
    "PerLayer",
    "Proportional",
    "QuantileTracker",
    "Repeated",
    "SparseVectorQuery",
    "Strategy",
    "SumQuery",
    "Total",
    "WeightedMean",
    "assign",
    "remaining",
]
