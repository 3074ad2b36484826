"""Watching a model's parameters while a batch is worked on: only the optimizer may change them, with noise."""

from __future__ import annotations

from torch import Tensor, nn

from tacit.gradients.shards import cut_up, sharded_modules
from tacit.training.held import Held, put_back


class WatchedParameters:
    """The parameters as they were when a batch was handed out.

    The window ends with ``optimizer.step()``: what the caller does with released weights after it (clamping, averaging)
    is post-processing. Frozen parameters, which may be most of a model, are compared by their digests and not
    copied; they are found out then, but cannot be put back.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._sharded = model, sharded_modules(model)
        self._held: dict[str, Held] = {}
        self._watching = False

    def hold(self) -> None:
        """A batch is handed out."""
        before = {id(held.tensor): held for held in self._held.values()}
        now: dict[int, Held] = {}  # a parameter with several names is held once
        self._held, self._watching = {}, True
        cut_up(self._sharded)
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            if id(parameter) not in now:
                held = before.get(id(parameter))
                if held is None or held.copied != parameter.requires_grad:
                    held = Held(parameter, copied=parameter.requires_grad)
                else:
                    held.renew()
                now[id(parameter)] = held
            self._held[name] = now[id(parameter)]

    def put_back(self) -> list[str]:
        """End the window, undo every change in it, and name the parameters that had one."""
        if not self._watching:
            return []
        self._watching = False
        cut_up(self._sharded)  # what was written to gathered parameters is gone with them
        found: dict[str, Tensor] = dict(self._model.named_parameters(remove_duplicate=False))
        changed = put_back(self._model, "_parameters", self._held, found)
        for held in self._held.values():
            held.drop_copy()  # as much memory as the sums that come now
        return changed

    def check(self) -> None:
        """Refuse a parameter that was written to by anything but the optimizer."""
        changed = self.put_back()
        if not changed:
            return
        lost = [name for name in changed if name in self._held and not self._held[name].copied]
        done = f"could not be put back ({', '.join(lost)})" if lost else "was put back"
        raise RuntimeError(
            f"parameter {', '.join(map(repr, changed))} changed between the batch and optimizer.step() and {done}: "
            "what is written there leaves without noise. Leave the parameters to the optimizer, or write to them after "
            "optimizer.step(), with nothing that depends on the records."
        )
