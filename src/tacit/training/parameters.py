"""Watch a model's parameters from a batch to its ``optimizer.step()``: only the optimizer may change them."""

from __future__ import annotations

from torch import nn

from tacit.gradients.shards import cut_up, sharded_modules
from tacit.training.snapshot import Snapshot, members, put_back, renew_all


class WatchedParameters:
    """The parameters as they were when a batch was handed out.

    The window ends with ``optimizer.step()``: what the caller does with released weights after it (clamping, averaging)
    is post-processing. The window compares digests, because a copy would double the model's memory. So the values of a
    changed parameter are lost; they are overwritten with NaN, so that no value of the records stays.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._sharded = model, sharded_modules(model)
        self._held: dict[str, Snapshot] = {}
        self._lost: dict[str, tuple[Snapshot, int]] = {}
        """The lost tensors by name, each with its version then: loading any values raises the version."""
        self._watching = False

    def hold(self) -> None:
        """Open the window: the loop gets a batch."""
        self.check()  # the batch before may have ended with an error
        before = {id(held.tensor): held for held in self._held.values()}
        now: dict[int, Snapshot] = {}  # a parameter with several names is held once
        names: dict[str, Snapshot] = {}
        cut_up(self._sharded)
        for name, parameter in members(self._model, "_parameters").items():
            if id(parameter) not in now:
                now[id(parameter)] = before.get(id(parameter)) or Snapshot(parameter, copied=False)
            names[name] = now[id(parameter)]
        renew_all(list(now.values()))
        self._held, self._watching = names, True

    def put_back(self) -> list[str]:
        """End the window, undo every change in it, and name the parameters that had one.

        If that fails half-way, the window stays open and the run refuses to go on.
        """
        if not self._watching:
            return []
        cut_up(self._sharded)  # what was written to gathered parameters is gone with them
        found = members(self._model, "_parameters")
        changed, lost = put_back(self._model, "_parameters", self._held, found)
        for name in lost:
            tensor = self._held[name].tensor
            self._lost[name] = Snapshot(tensor, copied=False), tensor._version
        self._watching = False
        return changed

    def check(self) -> None:
        """Raise an error if anything but the optimizer changed a parameter."""
        changed = self.put_back()
        if changed:
            raise RuntimeError(
                f"parameter {', '.join(map(repr, changed))} changed between the batch and optimizer.step() and was "
                f"restored{self.what_is_lost()}: values written there would leave without noise. Leave the parameters "
                "to the optimizer, or write to them after optimizer.step(), with nothing that depends on the records."
            )

    def refuse_lost(self) -> None:
        """Refuse to go on with a parameter whose values were lost and not yet loaded again."""
        self.check()
        if not self._lost:
            return
        found = members(self._model, "_parameters")
        self._lost = {
            name: (held, version)
            for name, (held, version) in self._lost.items()
            if held.same(found.get(name)) and held.tensor._version == version
        }
        if self._lost:
            raise RuntimeError(
                f"a parameter was written to while a batch was worked on{self.what_is_lost()}. Load a checkpoint or a "
                "state_dict, or make model and run anew."
            )

    def what_is_lost(self) -> str:
        """Return the end of a message; empty if no value is lost."""
        return f" (without its values, which are overwritten now: {', '.join(self._lost)})" if self._lost else ""
