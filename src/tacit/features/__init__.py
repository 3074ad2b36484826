"""Features of the records: fixed transforms, and learned ones that are charged."""

from tacit.features.front import Fitted, Front, Pixels, Projection, RandomProjection
from tacit.features.invariant import Invariant
from tacit.features.kernel import GaussianKernel
from tacit.features.patches import Patches
from tacit.features.pca import Pca, private_pca
from tacit.features.public import Convolutions
from tacit.features.scattering import Grouped, Scattering, Whitened
from tacit.features.statistics import Statistics

__all__ = [
    "Convolutions",
    "Fitted",
    "Front",
    "GaussianKernel",
    "Grouped",
    "Invariant",
    "Patches",
    "Pca",
    "Pixels",
    "Projection",
    "RandomProjection",
    "Scattering",
    "Statistics",
    "Whitened",
    "private_pca",
]
