"""The private run: ties sampling, mechanisms, ledger and gradient engine to a model and an optimizer."""

from tacit.training.adam import AdamBC
from tacit.training.batch_norm import PrivateBatchNorm, private_batch_norm
from tacit.training.fit import fit
from tacit.training.loggers import JsonLines, Logger, TensorBoard
from tacit.training.private import make_private
from tacit.training.run import PrivateRun
from tacit.training.tally import Metric
from tacit.training.team import Parallel
from tacit.training.validation import fix, validate

__all__ = [
    "AdamBC",
    "JsonLines",
    "Logger",
    "Metric",
    "Parallel",
    "PrivateBatchNorm",
    "PrivateRun",
    "TensorBoard",
    "fit",
    "fix",
    "make_private",
    "private_batch_norm",
    "validate",
]
