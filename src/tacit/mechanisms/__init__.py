"""Mechanisms: clipped sums with noise, and how both are chosen."""

from tacit.mechanisms.adaptive import Adaptive, AdaptiveClipping
from tacit.mechanisms.allocation import Allocation, DimensionAdjusted, Explicit, Proportional, remaining
from tacit.mechanisms.clipping import Automatic, DimensionWeighted, Flat, Groups, Joint, PerLayer, Strategy
from tacit.mechanisms.correlated import Correlated, CorrelatedNoise
from tacit.mechanisms.counts import CountsQuery
from tacit.mechanisms.groups import Clipping
from tacit.mechanisms.lattice import Discrete
from tacit.mechanisms.microbatch import Microbatches, Repeated, assign
from tacit.mechanisms.quantile import QuantileTracker
from tacit.mechanisms.shared_noise import SharedSum
from tacit.mechanisms.sparse_vector import Chosen, SparseVectorQuery
from tacit.mechanisms.strategies import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    SparseInverse,
    SquareRoot,
    TreeAggregation,
)
from tacit.mechanisms.sums import LaplaceQuery, SumQuery, Total, WeightedMean

__all__ = [
    "Adaptive",
    "AdaptiveClipping",
    "Allocation",
    "Automatic",
    "BandedInverse",
    "BandedToeplitz",
    "BufferedToeplitz",
    "Chosen",
    "Clipping",
    "Correlated",
    "CorrelatedNoise",
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
    "SharedSum",
    "SparseInverse",
    "SparseVectorQuery",
    "SquareRoot",
    "Strategy",
    "SumQuery",
    "Total",
    "TreeAggregation",
    "WeightedMean",
    "assign",
    "remaining",
]
