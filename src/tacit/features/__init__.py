"""What a model sees of the records: fixed transforms, and learned ones that are paid for."""

from tacit.features.front import Fitted, Front, Pixels, Projection, RandomProjection
from tacit.features.pca import Pca, private_pca
from tacit.features.scattering import Grouped, Scattering, Whitened
from tacit.features.statistics import Statistics

__all__ = [
    "Fitted",
    "Front",
    "Grouped",
    "Pca",
    "Pixels",
    "Projection",
    "RandomProjection",
    "Scattering",
    "Statistics",
    "Whitened",
    "private_pca",
]
