"""Check the optimizer of a run, and hold its step back until the end of the lot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tacit.gradients.nested import tensors
from tacit.gradients.traced import Traced

log = logging.getLogger("tacit")

Take = Callable[[Callable[[], Any] | None], Any]


def check_optimizer(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> None:
    """Refuse an optimizer whose parameters are not exactly the trainable parameters of the model."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS evaluates its closure several times a step; each would be a release. Use another one.")
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    missing = [name for name, parameter in parameters.items() if parameter not in held]
    if missing:
        raise ValueError(
            f"the optimizer does not hold {', '.join(missing)}; add them, or freeze them with requires_grad_(False): "
            "they would take part in clipping and cost noise for nothing."
        )
    own = {id(parameter) for parameter in parameters.values()}
    foreign = [parameter for parameter in held if parameter.requires_grad and id(parameter) not in own]
    if foreign:
        raise ValueError(
            f"the optimizer holds {len(foreign)} trainable parameters that are not the model's; their gradients would "
            "not be private. Make them part of the model, or freeze them."
        )


def call_gradient_hooks(name: str, parameter: Tensor) -> None:
    """Let the user's gradient hooks of a parameter change its released gradient: that is post-processing."""
    for hook in list((parameter._backward_hooks or {}).values()):
        with torch.no_grad(), _WithoutBatch(name):
            changed = hook(parameter.grad)  # type: ignore[arg-type]
        if changed is not None:
            parameter.grad = changed


class _WithoutBatch(TorchFunctionMode):
    """Refuse operations on tensors of the batch: their values have no noise."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(type(t) is Traced for t in tensors((args, kwargs))):
            raise RuntimeError(
                f"the gradient hook of {self._name} uses a tensor of the batch, which has no noise; a hook may use the "
                "gradient, parameters and constants"
            )
        return func(*args, **(kwargs or {}))


def tell_gradient_hooks(model: nn.Module) -> None:
    """Warn where a trainable parameter has hooks on accumulated gradients, which a private run does not call."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    hooked = [name for name, p in trained if p._post_accumulate_grad_hooks]
    if hooked:
        log.warning(
            "the hook on the accumulated gradient of %s%s is not called in a private run. To change the released "
            "gradient, use %s.register_hook or optimizer.register_step_pre_hook.",
            hooked[0],
            f" (and of {len(hooked) - 1} more)" if len(hooked) > 1 else "",
            hooked[0],
        )


class Updates:
    """An optimizer whose ``step()`` is handed to the run; the real one is `apply`."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], take: Take) -> None:
        self.optimizer = optimizer
        self._own = {id(parameter) for parameter in parameters.values()}
        self.apply, self._plain = optimizer.step, "step" not in vars(optimizer)
        self._patched = MethodType(_handing_to(take, marked=hasattr(self.apply, "_wrapped_by_lr_sched")), optimizer)
        optimizer.step = self._patched  # type: ignore[method-assign]
        self._rates: list[Any] | None = None
        self._told = False

    def begin_lot(self) -> None:
        """Forget the learning rates of the previous lot."""
        self._rates = None

    def compare_rates(self) -> None:
        """Warn, once, where a learning rate changes between two batches of a lot: a scheduler steps once a batch."""
        if self._told:
            return
        now = [rate for group in self.optimizer.param_groups if isinstance(rate := group.get("lr"), float)]
        if self._rates not in (None, now):
            self._told = True
            log.warning(
                "the learning rate changed in the middle of a lot, for which the optimizer takes one step; step the "
                "scheduler once a lot: `if run.lot_finished: scheduler.step()`."
            )
        self._rates = now

    def refuse_raw_gradients(self) -> None:
        """Refuse gradients of other parameters of the optimizer: they have no noise."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in self._own:
                    raise RuntimeError(
                        f"the optimizer holds a parameter of shape {tuple(parameter.shape)} with a gradient that is "
                        "not private; call optimizer.zero_grad() before the run, and make a new run when other "
                        "parameters are to be trained."
                    )

    def restore(self) -> None:
        """Give the optimizer its own step back."""
        if vars(self.optimizer).get("step") is self._patched:
            # A scheduler made meanwhile may have wrapped our step: then ours stays, and passes everything on.
            if self._plain:
                del self.optimizer.__dict__["step"]
            else:
                self.optimizer.step = self.apply  # type: ignore[method-assign]


def _handing_to(take: Take, *, marked: bool) -> Callable[..., Any]:
    def step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        optimizer._opt_called = True  # type: ignore[attr-defined] # for a scheduler, which warns of the wrong order
        return take(closure)

    if marked:
        # A scheduler made before the run looks for this mark on the step, and warns when it is gone.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step
