"""What a model sees of the records: fixed transforms, and learned ones that are paid for."""

from tacit.features.front import Fitted, Front, Pixels, Projection, RandomProjection
from tacit.features.pca import Pca, private_pca

__all__ = ["Fitted", "Front", "Pca", "Pixels", "Projection", "RandomProjection", "private_pca"]
