"""Rules for operations: how their parameters' gradients are captured, and where examples lie afterwards.

Each file registers its rules when it is imported (see `registry`). A new layer is a file here, listed below.
"""

from __future__ import annotations

from tacit.gradients.layers import (
    attention,
    conv,
    embedding,
    linear,
    loss,
    loss_mean,
    matmul,
    norm,
    packed_sequences,
    pointwise,
    pooling,
    recurrent,
    rnn_cells,
)

__all__ = [
    "attention",
    "conv",
    "embedding",
    "linear",
    "loss",
    "loss_mean",
    "matmul",
    "norm",
    "packed_sequences",
    "pointwise",
    "pooling",
    "recurrent",
    "rnn_cells",
]
