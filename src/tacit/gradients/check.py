"""Problems that are visible before the first step."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import nn

from tacit.gradients.guard.model_copies import NotCompared, copied
from tacit.gradients.guard.run_in_parts import INFLUENCE, is_influenced
from tacit.gradients.guard.standing_still import seeded
from tacit.gradients.problems import ValuesRead, module_problems, refuse


def check(model: nn.Module, *args: Any, batch_dim: Any = 0, rows_per_record: int = 1, **kwargs: Any) -> None:
    """Raise a ValueError that lists everything that stands in the way of per-example gradients.

    The modules are looked at, the model is run once on the given batch (eight examples are enough) with every operation
    followed, and parts of the batch are run by themselves (`independence`), which finds mixing that no operation shows.
    The model's attributes and buffers and the random state are left as they were, unless it cannot be copied.
    """
    from tacit.gradients.engine import Engine

    refuse(module_problems(model))
    try:
        twin = copied(model)
    except Exception:  # whatever a model that cannot be copied raises
        twin = model
    with seeded(0):
        engine = Engine(twin, batch_dim=batch_dim, rows_per_record=rows_per_record)
        try:
            inputs, named = engine._inputs.marked(args, kwargs)
            engine._passes.watch()
            try:
                twin.forward(*inputs, **named)
            except ValuesRead as error:
                refuse([str(error)])
                raise
            finally:
                engine._passes.stop_watching()
            engine._recorder.problems.check()
            with suppress(NotCompared):
                refuse([INFLUENCE] if engine.batch_size > 1 and is_influenced(engine._recorder, inputs, named) else [])
        finally:
            engine.detach()
