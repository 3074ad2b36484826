"""Passes of the model: what begins when its forward is called, and ends when it returns."""

from __future__ import annotations

import itertools
import threading
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tacit.gradients import shards
from tacit.gradients.frozen_prefix import put_prefixes
from tacit.gradients.guard import backward
from tacit.gradients.guard.comparison import Comparison
from tacit.gradients.guard.hidden_calls import Unseen
from tacit.gradients.guard.run_in_parts import outputs_of
from tacit.gradients.inputs import Inputs, divisions
from tacit.gradients.isolation.isolate import Installed
from tacit.gradients.isolation.module_state import State
from tacit.gradients.isolation.plan import FEWEST, make_plan
from tacit.gradients.libraries import data_independent
from tacit.gradients.libraries.compiled import Eager, leave_compiler
from tacit.gradients.recorder import Recorder
from tacit.gradients.torch_internals import current_frames, get_frame
from tacit.gradients.traced import plain


class Passes:
    """Hooks around the model's forward: tags the inputs, makes the plan, and watches until the pass is over."""

    is_copy = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave everything out: a copy of the model has hooks that follow nothing and hold no record."""
        return {"is_copy": True}

    def __init__(
        self, recorder: Recorder, inputs: Inputs, *, isolate: Sequence[str] | bool | None, compares: bool
    ) -> None:
        model = recorder.model
        self._recorder, self._inputs = recorder, inputs
        self._calls: list[int] = []
        """Calls of the model that are running, by their frames: one, or more if it calls itself."""
        self._isolate = ([""] if isolate else []) if isinstance(isolate, bool) else list(isolate or ())
        for name in self._isolate:
            model.get_submodule(name)
        self._planned = isolate is False
        self._late: Any = None
        """The first batch of a model that is isolated as a whole: PyTorch has looked up its forward before."""
        self._given: Any = None
        """The arguments of the running pass, if it may be compared with its parts."""
        data_independent.prepare()  # PyTorch looks up a model's forward before any hook runs
        self._eager = Eager(model)
        self._isolated = Installed(recorder, model, {})
        self._comparison = Comparison(recorder, wanted=compares)
        self._prefixes = put_prefixes(model, recorder)
        self._unseen = Unseen(recorder)
        self._familiar = Familiar()
        self._module_hooks: list[Any] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.is_copy:
            return None
        if torch.compiler.is_dynamo_compiling():
            leave_compiler()
        if self._calls:
            self._forget_ended_calls()
        self._calls.append(id(get_frame(1)))
        if len(self._calls) > 1:
            return None
        if not torch.is_grad_enabled():
            self._recorder.evaluating = True
            return None
        if self._familiar.watches:
            self._module_hooks = backward.module_hooks(self._recorder.model)
        if any(self._module_hooks):
            backward.refuse_module_hooks(self._recorder.model)
        if self._recorder.sharded_modules:
            shards.gather_again(self._recorder.model, self._recorder.sharded_modules)
        self._recorder.problems.enter()
        marked = self._inputs.marked(args, kwargs)
        self._eager.put()
        fresh = not self._planned and self._make_plan(marked)
        isolated = self._recorder.is_isolated()
        if not isolated and divisions(marked):
            raise ValueError(
                "the batch is one object or a list with an entry for each example (graphs, boxes of images), and the "
                "model gives other outputs for its examples one at a time than together: somewhere examples influence "
                "each other, or a loss of the batch is no mean of the examples' own losses"
            )
        self._given = None if isolated else marked  # alone, examples cannot influence each other
        if not isolated:
            self._comparison.begin(*marked)
        if fresh and isolated:
            self._late = marked, State(self._recorder.model), torch.get_rng_state()
            self._late[1].begin()
            return plain(args), plain(kwargs)
        self.watch()
        return marked

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if self.is_copy:
            return None
        call = id(get_frame(1))
        failed = output is None and call not in self._calls  # PyTorch calls hooks from elsewhere then
        if failed or not self._calls:
            if self._calls:
                self._forget_ended_calls()
            return None
        late = None if self._late is None else self._end_late()
        if late is not None and output is not None:
            self.watch()
            output = module.forward(*late[0], **late[1])
        self._calls.remove(call if call in self._calls else self._calls[-1])  # compiled frames are others
        if not self._calls:
            evaluated = self._recorder.evaluating
            self.stop_watching()
            if output is not None:
                self._recorder.problems.check()
                operations = tuple(self._recorder.trail)
                if self._recorder.batch:
                    self._familiar.note(operations)
                if not evaluated:  # else what the last pass left, which was refused, would count
                    self._compare(operations)
                    if self._recorder.inferred:
                        last = max(self._recorder.inferred)
                        self._recorder.note_outputs(list(itertools.islice(outputs_of(output), last + 1)))
        return None if late is None else output

    def _compare(self, operations: tuple[Any, ...]) -> None:
        """Conclude the comparison of this batch with its parts; one whose operations are others is compared too."""
        given, self._given = self._given, None
        self._comparison.conclude(operations)
        if given is not None and self._comparison.is_new(operations):
            self._eager.put()
            try:
                self._comparison.begin(*given)
            finally:
                self._eager.remove()
            self._comparison.conclude(operations)

    def _end_late(self) -> Any:
        """Undo the pass that PyTorch had begun before the plan; return its arguments, to be followed."""
        if self._late is None:
            return None
        (given, state, random), self._late = self._late, None
        state.__exit__(None, None, None)
        torch.set_rng_state(random)
        return given

    def _forget_ended_calls(self) -> None:
        """Forget calls that failed or that Ctrl-C ended: PyTorch does not call `leave` for them."""
        running = _running_frames()
        self._calls = [call for call in self._calls if call in running]
        if not self._calls:
            self.abandon()

    def are_running(self) -> bool:
        """Return whether a call of the model has not come to its end."""
        if self._calls:
            self._forget_ended_calls()
        return bool(self._calls)

    def end(self) -> None:
        """Follow no more passes."""
        self._isolated.remove()
        for prefix in self._prefixes:
            prefix.remove()
        self.abandon()
        self._eager.end()

    def abandon(self) -> None:
        """Forget the pass that runs: it came to no end."""
        self._calls, self._given = [], None
        self._end_late()
        self._recorder.problems.fail()
        self.stop_watching()

    def _make_plan(self, marked: Any) -> bool:
        """Before the first batch that is not empty, decide which modules run one example at a time."""
        if not self._recorder.batch or self._recorder.sharded:
            return False
        self._planned = self._recorder.batch >= FEWEST  # with fewer the plan is made again: equal examples tell little
        self._isolated.remove()
        self._recorder.plan = make_plan(self._recorder, marked[0], marked[1], self._isolate)
        self._isolated = Installed(self._recorder, self._recorder.model, self._recorder.plan)
        return True

    def watch(self) -> None:
        """Follow what the model does from here on."""
        self._recorder.inside = True
        self._isolated.begin()
        self._eager.put()
        data_independent.begin()
        self._recorder.trail = []
        if self._familiar.watches:
            self._unseen.put()

    def stop_watching(self) -> None:
        """Follow it no more."""
        if self._recorder.inside:
            data_independent.end()
        self._recorder.inside = self._recorder.evaluating = False
        self._unseen.remove()
        self._eager.remove()


class Familiar:
    """Sequences of operations that passes were made of, and whether the next pass is watched for hidden calls.

    Watching (`guard.hidden_calls`) costs as much as following. Code that hides from PyTorch is found while the plan is
    made and in the first pass; after a pass that did something else, which was compared with its parts (`Comparison`),
    passes are watched until it was seen to do it.
    """

    MOST = 256

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._awaited: set[tuple[Any, ...]] = set()
        self.watches = True
        self._last: tuple[Any, ...] | None = None
        """Those of the last pass, where it was a known one and no other is awaited: most are as the one before."""

    def note(self, operations: tuple[Any, ...]) -> None:
        """A pass is over, which called these functions on tensors of the batch."""
        if operations == self._last:
            return  # known, and nothing that is awaited
        if self.watches:
            self._seen.add(operations)
            self._awaited.discard(operations)
        elif operations not in self._seen:
            self._awaited.add(operations)
        if len(self._seen) > self.MOST:
            self._seen, self._awaited = set(), set()
        self.watches = not self._seen or bool(self._awaited)
        self._last = None if self.watches else operations


def _running_frames() -> set[int]:
    """All that threads are in the middle of, but for the call that is just beginning (three frames up from here)."""
    found: set[int] = set()
    tops = current_frames()
    tops[threading.get_ident()] = get_frame(3)
    for frame in tops.values():
        found.update(id(each) for each, _ in traceback.walk_stack(frame))
    found.discard(id(tops[threading.get_ident()]))
    return found
