"""The batch that was recorded, measured: every example's norms, and clipped sums of the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from tacit._transfer import sent
from tacit.gradients.clipping import Clipping, checked_partition, checked_weights
from tacit.gradients.factors.cancellation import bounded_squares
from tacit.gradients.factors.complex_parts import real
from tacit.gradients.factors.contribution import Contribution, Dense, added, cleared, precise
from tacit.gradients.factors.uses import Uses
from tacit.gradients.isolation.isolate import gather_gradients
from tacit.gradients.kernels.loops import add_rows_up, roots, squares_each
from tacit.gradients.layers import loss_mean
from tacit.gradients.precision import CALLS, NORM_SHARE, UNIT, check_precision, unmixed
from tacit.gradients.recording import Recording
from tacit.gradients.torch_internals import write_count


class Measured:
    """The captured contributions of a batch, measured once and summed with any weights."""

    def __init__(self, recorder: Recording) -> None:
        self._recorder = recorder
        self.shapes = {name: real(p).shape for name, p in recorder.parameters.items()}
        """A complex parameter is pairs of real numbers."""
        self._dtypes = {
            name: torch.promote_types(real(p).dtype, torch.float32) for name, p in recorder.parameters.items()
        }
        self.uses: dict[str, Uses] = {}
        self._formed: dict[str, Dense] = {}
        """Gradients that were formed, one use a parameter: many parameters are measured, and summed, by one call."""
        self._rows: Tensor | None = None
        """Their squared norms, a row for each."""
        self._entries = sum(shape.numel() for shape in self.shapes.values())
        self._squares: dict[str, Tensor] = {}
        self._read: list[tuple[str, Tensor, int]] = []
        """The tensors that the squares of each parameter were computed from, and their versions."""
        self._captures = 0
        """How many captures the squares were computed from."""

    def forget(self) -> None:
        self.uses, self._squares, self._captures, self._read = {}, {}, 0, []
        self._formed, self._rows = {}, None

    def begin_again(self) -> None:
        """Measure everything anew the next time: what it is made of may be written to before."""
        self.forget()
        for parts in self._recorder.parts.values():
            for part in parts:
                for each in (part.contribution, *vars(part.contribution).values()):
                    if isinstance(each, Dense):
                        each.known = None

    def norms(self, partition: Sequence[tuple[str, ...]], *, once: bool = False) -> Tensor:
        """The norms, [batch, groups]; NaN or infinite for a gradient that is not finite.

        Lemma 4 of docs/finite-precision.md: upper bounds of the true norms up to 2·`NORM_SHARE`. A squared norm may be
        below the truth by its rounding, and by the squares too small for the type; adding the parameters and the root
        round too. The margin covers so much, and only the rest must enlarge the norm. All of it is public.
        """
        return self._norms(partition, once=once)[0]

    def _norms(self, partition: Sequence[tuple[str, ...]], *, once: bool) -> tuple[Tensor, bool | None]:
        """And whether all of them are finite, where that was found on the way."""
        squares = self.squares(once=once)
        groups = [list(map(squares.__getitem__, group)) for group in partition]
        type_info = torch.finfo(groups[0][0].dtype)
        errors = max((each.rounding().relative for each in self._formed.values()), default=0.0) * UNIT
        for uses in self.uses.values():
            errors = max(errors, uses.relative)
        excess = (errors + len(self.shapes) * type_info.eps) / 2 - NORM_SHARE
        lost, factor = math.sqrt(self._entries * type_info.tiny), 1 + 16 * type_info.eps + max(0.0, excess)
        if len(groups) == 1:
            norms = groups[0][0].new_empty(len(groups[0][0]), 1)
            apart = [s for name, s in squares.items() if name not in self._formed]
            finite = roots(apart if self._rows is None else [self._rows, *apart], lost, factor, norms)
            if finite is not None:
                return norms, finite
        return torch.stack([added(group) for group in groups], 1).sqrt_().add_(lost).mul_(factor), None

    def squares(self, *, once: bool = False) -> dict[str, Tensor]:
        """Every example's squared norm for every parameter; not kept for another time if they are needed ``once``."""
        recorder = self._recorder
        if recorder.batch is None:
            raise RuntimeError(
                "no batch was seen: call the model on a batch (inside the recording), then loss.backward()"
            )
        if not recorder.captures and recorder.batch > 0:
            raise RuntimeError("backward was not run: call loss.backward() on a loss computed through the model first")
        device = next(iter(recorder.parameters.values())).device
        check_precision(device)
        if self._squares and self._captures == recorder.captures:
            self.refuse_writes()
            return self._squares
        gather_gradients(recorder)
        if recorder.parts:
            loss_mean.check_reduction(recorder)
        with torch.no_grad(), unmixed(device):
            self.uses, squares = {}, self._measure_formed()
            for name in recorder.parameters:
                parts = recorder.parts.get(name)
                if parts and name not in squares:
                    uses = self.uses[name] = Uses(parts, self.shapes[name])
                    recorder.parts[name] = uses.parts
            squares.update(zip(self.uses, bounded_squares(list(self.uses.values()))))
            dtypes = set()
            for name, parameter in recorder.parameters.items():
                if name not in squares:
                    squares[name] = torch.zeros(recorder.batch, device=parameter.device)
                elif squares[name].dtype not in (torch.float32, torch.float64):
                    squares[name] = precise(squares[name])
                dtypes.add(squares[name].dtype)
        if len(dtypes) > 1:
            squares = {name: s.double() for name, s in squares.items()}
        if once:
            return squares
        self._squares, self._captures = squares, recorder.captures
        self._read = [
            (name, t, write_count(t))
            for name, parts in recorder.parts.items()
            for part in parts
            for t in _held(part.contribution)
        ]
        return squares

    def _measure_formed(self) -> dict[str, Tensor]:
        """Return the squared norms of all gradients that lie formed in memory, by the name of the parameter."""
        self._formed = {}
        for name, parts in self._recorder.parts.items():
            found = parts[0].contribution
            if len(parts) == 1 and type(found) is Dense and parts[0].region is None:
                self._formed[name] = found  # measured before or not, which may be for one record's sake
        self._rows = squares_each([each.grads for each in self._formed.values()])
        if self._rows is None:
            self._formed = {}
            return {}
        return dict(zip(self._formed, self._rows.unbind(0)))

    def coarsest_dtype(self) -> torch.dtype:
        """The floating type with the largest unit roundoff among the captured tensors, or float64 if there are none."""
        parts = [part.contribution for several in self._recorder.parts.values() for part in several]
        found = {t.dtype for part in parts for t in _held(part) if t.is_floating_point() or t.is_complex()}
        return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)

    def refuse_writes(self) -> None:
        """Norms that were found before no longer belong to gradients whose factors were written to since."""
        for name, t, version in self._read:
            if write_count(t) != version:
                raise RuntimeError(
                    f"what the gradient of {name!r} is made of was modified in place after the norms were taken; take "
                    "the clipped sum first, or leave the batch and its activations alone until then"
                )

    def weights(
        self, clipping: Clipping, scale: float, *, once: bool = False
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Each parameter's weights w_i, and which examples have finite gradients, or None if all have."""
        partition = checked_partition(clipping.partition(self.shapes), self.shapes)
        found, all_finite = self._norms(partition, once=once)
        norms = found.cpu()  # few numbers: looking at them there makes the host wait once
        finite: Tensor | None = None
        if all_finite is None:
            all_finite = not norms.numel() or float(norms.max()) < math.inf  # the largest of some NaN is NaN
        if not all_finite:
            finite = torch.isfinite(norms).all(1)
            norms = torch.where(finite.unsqueeze(1), norms, 0.0)
        weights = checked_weights(clipping.weights(norms), norms)
        if finite is not None:
            weights = torch.where(finite.unsqueeze(1), weights, 0.0)
        columns = sent(weights * scale if scale != 1 else weights, found.device).unbind(1)
        finite = None if finite is None else sent(finite, found.device)
        return {name: columns[g] for g, group in enumerate(partition) for name in group}, finite

    def sums(
        self, weights: Mapping[str, Tensor], finite: Tensor | None, given: Mapping[str, Tensor] | None, overwrite: bool
    ) -> dict[str, Tensor]:
        """Σ_i w_i·G_i of every parameter: new tensors, or `given`, in the place of what they hold or added to it."""
        result: dict[str, Tensor] = {}
        groups: dict[int, list[str]] = {}
        for name in self._formed:
            groups.setdefault(id(weights[name]), []).append(name)
        for names in groups.values():
            result.update(zip(names, self._sums_formed(names, weights[names[0]], finite)))
        if given is not None:
            for name, total in result.items():
                result[name] = given[name].copy_(total) if overwrite else given[name].add_(total)
        for name in self._recorder.parameters:
            if name not in result:
                out = None if given is None else given[name]
                result[name] = self.sum_up(name, weights[name], finite, out, overwrite=given is None or overwrite)
        return {name: result[name] for name in self._recorder.parameters}

    def _sums_formed(self, names: Sequence[str], weights: Tensor, finite: Tensor | None) -> list[Tensor]:
        """The sums of gradients that lie formed in memory, by one call, in one piece of memory."""
        several = [self._formed[name].grads for name in names]
        if finite is not None:
            several = [cleared(each, ~finite) for each in several]
        shapes = [self.shapes[name] for name in names]
        sizes = [shape.numel() for shape in shapes]
        flat = torch.empty(sum(sizes), dtype=torch.float32, device="cpu")
        out = [part if len(s) == 1 else part.view(s) for s, part in zip(shapes, torch.split(flat, sizes))]
        add_rows_up(several, weights, out, CALLS[0])
        return out

    def sum_up(
        self, name: str, weights: Tensor, finite: Tensor | None, out: Tensor | None = None, *, overwrite: bool = True
    ) -> Tensor:
        """Σ_i w_i·G_i of one parameter: in new memory, in the place of what `out` holds, or added to it."""
        if name in self._formed:
            (total,) = self._sums_formed([name], weights, finite)
            return total if out is None else out.copy_(total) if overwrite else out.add_(total)
        uses = self.uses.get(name)
        if out is None:
            device = self._recorder.parameters[name].device
            out = torch.empty(self.shapes[name], dtype=self._dtypes[name], device=device)
        if uses is None:
            return out.zero_() if overwrite else out
        if finite is not None:
            uses = uses.without(~finite)
        fresh = out if overwrite else torch.empty_like(out)
        if torch.is_autocast_enabled(out.device.type):
            with unmixed(out.device):
                uses.assign(fresh, weights)
        else:
            uses.assign(fresh, weights)
        return out if overwrite else out.add_(fresh)


def _held(contribution: Contribution) -> Iterator[Tensor]:
    """The tensors of a contribution, which may be those that the caller has."""
    for value in vars(contribution).values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Contribution):
            yield from _held(value)
