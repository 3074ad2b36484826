"""Samplers, and lots cut into batches."""

from tacit.sampling.cyclic import CyclicSampler
from tacit.sampling.epochs import AllocationSampler, EpochSampler, ShuffledSampler
from tacit.sampling.lots import LotReader, batches
from tacit.sampling.owners import Owners, OwnerSampler, bounded_by_owner, chosen_records
from tacit.sampling.samplers import EveryoneSampler, FixedSizeSampler, PoissonSampler, Sampler
from tacit.sampling.truncated import TruncatedPoissonSampler
from tacit.sampling.users import UserLot, UserSampler

__all__ = [
    "AllocationSampler",
    "CyclicSampler",
    "EpochSampler",
    "EveryoneSampler",
    "FixedSizeSampler",
    "LotReader",
    "OwnerSampler",
    "Owners",
    "PoissonSampler",
    "Sampler",
    "ShuffledSampler",
    "TruncatedPoissonSampler",
    "UserLot",
    "UserSampler",
    "batches",
    "bounded_by_owner",
    "chosen_records",
]
