"""NVIDIA FLARE: a filter for task results that makes a client's updates private, charges them and stops at a budget.

    job.to_clients(
        GaussianUpdates(epsilon=8.0, delta=1e-5, clip_norm=1.0, rounds=20, ledger="/var/lib/tacit/{site}.jsonl"),
        filter_type=FilterType.TASK_RESULT, tasks=["train"],
    )

Needs the extra ``flare`` (nvflare); tried with 2.9.0 in its simulator.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode

from tacit.accounting import Filter as Gate
from tacit.collaboration.privacy import UNIT, GaussianPrivacy, whole_data_set
from tacit.ledger import Budget, BudgetExceeded, Everyone, Ledger, Step
from tacit.mechanisms import SumQuery
from tacit.randomness import SecureSource

log = logging.getLogger("tacit")


class GaussianUpdates(Filter):  # type: ignore[misc]
    """Replaces a client's change of the weights by the change clipped to L2 ``clip_norm`` with Gaussian noise.

    Formal guarantee: the record is the client's whole data set, exchanged for any other. All tensors of a result are
    one vector, clipped as a whole, so that a result is one Gaussian sum over one record of norm at most ``clip_norm``,
    and the exchange moves it by at most twice that (replace-one). Results of ``rounds`` rounds together are
    (``epsilon``, ``delta``)-differentially private; each is in the ledger before its noise is drawn, and the budget is
    a gate in front of it: once it is spent, zeros are sent, which say nothing. Metadata of a result (numbers of steps,
    metrics) is dropped, because no noise covers it; results that are no change of weights are refused.

    The ledger, at ``ledger`` with the client's name for ``{site}``, goes on when the client is started again.
    """

    def __init__(self, epsilon: float, delta: float, clip_norm: float, rounds: int, ledger: str) -> None:
        super().__init__()
        # FLARE writes a job's configuration from attributes that are called like the arguments.
        self.epsilon, self.delta, self.clip_norm, self.rounds, self.ledger = epsilon, delta, clip_norm, rounds, ledger
        privacy = GaussianPrivacy(epsilon=epsilon, delta=delta, clip_norm=clip_norm)
        noise = privacy.noise_multiplier(epochs=rounds) * clip_norm
        self._query = SumQuery(group="upload", clip_norm=clip_norm, noise_std=noise)
        self._book: Ledger | None = None

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """Return the result with its change made private."""
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        result = from_shareable(shareable)
        if result.data_kind != DataKind.WEIGHT_DIFF or not result.data:
            raise ValueError(
                f"the client's result is {result.data_kind}; only changes of weights (WEIGHT_DIFF) are made private. "
                "Send those, and nothing of this result was sent."
            )
        names = sorted(result.data)
        arrays = [np.asarray(result.data[name]) for name in names]
        flat = torch.from_numpy(np.concatenate([array.ravel().astype(np.float32) for array in arrays]))
        noisy = self._released(flat, str(fl_ctx.get_identity_name()))
        parts = np.split(noisy, np.cumsum([array.size for array in arrays])[:-1])
        data = {
            name: part.reshape(array.shape).astype(array.dtype)
            for name, part, array in zip(names, parts, arrays, strict=True)
        }
        return DXO(DataKind.WEIGHT_DIFF, data).update_shareable(shareable)

    def _released(self, change: torch.Tensor, site: str) -> Any:
        """Return the change with noise, charged first; zeros once the budget is spent."""
        book = self._opened(site)
        total = self._query.total(change.shape)
        total.add(change[None])
        try:
            receipt = book.record(Step(Everyone(unit=UNIT), (self._query.event(),)))
        except BudgetExceeded as error:
            log.warning("%s sends zeros from now on: %s", site, error)
            return np.zeros(change.numel(), dtype=np.float32)
        return total.release(receipt, SecureSource()).numpy().astype(np.float32)

    def _opened(self, site: str) -> Ledger:
        if self._book is None:
            path = Path(self.ledger.format(site=site))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._book = Ledger.open(path, whole_data_set(secure=True))
            self._book.guard(Gate(Budget(self.epsilon, self.delta)))
        return self._book
