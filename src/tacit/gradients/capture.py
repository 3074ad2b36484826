"""Capture: what arrives at trainable operations in the backward pass becomes contributions to their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from tacit.gradients.factors.complex_parts import real_parts
from tacit.gradients.factors.parameter_uses import Part, resolve
from tacit.gradients.layout import Mixed, Only, Tag, Total
from tacit.gradients.precision import unmixed
from tacit.gradients.recording import Pairs, Recording
from tacit.gradients.tap import Border, put_tap, unscaled
from tacit.gradients.torch_internals import without_subclasses, write_count
from tacit.gradients.traced import Traced, mark, plain


def is_divided(recorder: Recording, seed: Tensor) -> bool:
    """Return whether a sum over the examples of this batch was divided by their number, as in every batch before.

    Where batches that counted for nothing have shown the scale (`Recording.learning`), that is what holds.
    """
    batch = recorder.batch or 1
    if batch == 1 or recorder.learning or recorder.learned or recorder.divides is False:
        return False
    eps = torch.finfo(seed.dtype).eps
    return seed.numel() == 1 and abs(abs(float(seed)) * batch - 1) <= 2 * eps


class Capture(Recording):
    """Notes what the backward pass brings: gradients at taps, and seeds at reductions over examples."""

    def tag_outputs(self, out: Any, tag: Any, tagged: list[tuple[Tensor, Tag]]) -> None:
        """Say whose the entries of outputs are; a reduction over examples also notes what arrives at it."""
        if isinstance(out, (tuple, list)):
            for i, t in enumerate(out):
                self.tag_outputs(t, tag[i] if isinstance(tag, list) else tag, tagged)
        elif isinstance(out, Tensor) and tag is not None:
            if isinstance(tag, list):
                tag = tag[0]
            if id(out) in self.buffers and type(out) is not Traced:
                self.problems.add(
                    f"data of the batch is written into the buffer {self.buffers[id(out)]!r}, which would be released "
                    "without noise; keep such statistics out of the model, or fix them beforehand"
                )
                if not self.inside:
                    self.problems.check()  # the model need not be called any more
                return
            with without_subclasses():  # an operation may give what it was given
                trained = out.requires_grad
            if trained:
                if isinstance(tag, Mixed) and not tag.added:
                    self.problems.suspect(tag.reason)
                elif isinstance(tag, Total):
                    self._watch(out, tag, tagged)
            mark(out, self, tag)

    def _watch(self, out: Tensor, total: Total, tagged: list[tuple[Tensor, Tag]]) -> None:
        """Have a reduction over examples note what arrives at it; one that others lead to has done so."""
        reduced = [out]
        if Total in map(type, map(itemgetter(1), tagged)):
            reduced = [t for t, tag in tagged if isinstance(tag, Only) and t.requires_grad]  # another loss, added to it
        for t in reduced:
            with without_subclasses():
                t.register_hook(partial(self._seeded, total.kind, self.inside))  # type: ignore[no-untyped-call]
            mark(t, self, total)

    def note_outputs(self, outputs: list[Tensor]) -> None:
        """The model returned these: note what arrives at those that are a mean or sum over examples."""
        for i, kind in self.inferred.items():
            t = outputs[i] if i < len(outputs) else None
            if self.follows(t) and t is not None and t.requires_grad:
                with without_subclasses():
                    t.register_hook(lambda grad, kind=kind: self.output_seeds.append((kind, grad.detach())))  # type: ignore[no-untyped-call]

    def _seeded(self, kind: str, inside: bool, grad: Tensor) -> Tensor | None:
        """A gradient arrives at a reduction over examples: note it, and send each example its own share."""
        grad = grad.detach()
        declared = self.reduction
        if kind == "sum" and declared is None and not inside and is_divided(self, grad):
            declared, kind, grad = "mean", "mean", unscaled(grad, "sum", "mean", self.batch or 1)
            self.divided = True
        (self.inner_seeds if inside else self.seeds).append((kind, grad))
        return unscaled(grad, kind, declared, self.batch or 1) if self.capturing else None

    # -- capture -----------------------------------------------------------------------------------------------------

    def tap(self, out: Tensor, saved: Sequence[Tensor], make: Callable[[Tensor], Pairs]) -> Tensor:
        """When the gradient of `out` arrives, keep what `make` derives from it.

        `saved` are the inputs `make` will read; they must not be overwritten in between.
        """
        return put_tap(self.anchor, out, self.arrival(saved, make))  # type: ignore[no-untyped-call, no-any-return]

    def border(self, out: Tensor, upstream: list[Any]) -> Tensor:
        """The output of an isolated module; `upstream` are the nodes that made its inputs."""
        return Border.apply(self.anchor, out, self.arrival((), lambda grad: ()), upstream)  # type: ignore[no-untyped-call, no-any-return]

    def arrival(self, saved: Sequence[Tensor], make: Callable[[Tensor], Pairs]) -> Callable[[Tensor], None]:
        """Return what a node does with the gradient that arrives at it; see `tap`."""
        watched = [(t, write_count(t)) for t in saved]
        epoch = self.epoch

        def arrived(grad: Tensor) -> None:
            for t, version in watched:
                if write_count(t) != version:
                    raise RuntimeError(
                        f"a tensor of {t.ndim} dimensions that a trainable operation has read was modified in place; "
                        "write into a copy"
                    )
            if self.capturing:
                own = grad.detach() if grad.requires_grad else grad
                if torch.is_autocast_enabled(grad.device.type):
                    with unmixed(grad.device):
                        self.capture(make(plain(own)), epoch)
                else:
                    self.capture(make(own if type(own) is Tensor else plain(own)), epoch)

        return arrived

    def capture(self, pairs: Pairs, epoch: int) -> None:
        if epoch != self.epoch:
            raise RuntimeError("backward ran through a batch whose clipped sum was already taken")
        if self.strangers:
            raise RuntimeError(
                "backward ran on another batch before the clipped sum of the first was taken; take it after every "
                "batch (if they are the same examples, changed, add the losses and call backward once)"
            )
        self.captures += 1
        for source, contribution in pairs:
            name = self.names.get(id(source))
            if name is not None and not contribution.unsettled and not self.sharded and not source.is_complex():
                self.parts.setdefault(name, []).append(Part(contribution, None))
                continue
            if name is not None and not self.sharded and not source.is_complex() and not torch.is_grad_enabled():
                self.parts.setdefault(name, []).append(Part(contribution.settle(), None))
                continue
            with torch.no_grad():
                if source.is_complex():
                    source, contribution = real_parts(source, contribution)
                settled = contribution.settle()
                found = resolve(source, settled, self.names) if name is None else [(name, Part(settled, None))]
                for name, part in found:
                    if self.sharded:
                        part.contribution = part.contribution.apart()
                    self.parts.setdefault(name, []).append(part)
