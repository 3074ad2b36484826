"""Gradients of an isolated module's examples, computed again when they are needed instead of kept.

Each example's gradient has the size of the module. For a large module they are not kept: when one arrives in the
backward pass, its norm is taken and it is dropped. The weighted sum then walks the examples' graphs once more, one
example at a time. The graph is kept until then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.gradients.factors.complex_parts import real
from tacit.gradients.factors.contribution import Contribution, Dense, precise, row_squares
from tacit.gradients.precision import TOGETHER

LARGE = 4 << 20
"""Bytes of a module's parameters above which its gradients are not kept. Public: it does not depend on the batch."""

_RANDOM = (
    "the backward pass of a module that runs one example at a time is random: its gradients were computed twice, to be "
    "measured and to be added up, and differed. Take random numbers in the forward pass only, or give it less than "
    f"{LARGE >> 20} MB of parameters, so that its gradients are kept"
)


class Walk:
    """One call of an isolated module: its outputs, their gradients, and every example's aliases."""

    def __init__(self, aliases: Sequence[dict[str, Tensor]]) -> None:
        self.aliases = aliases
        self.used = True
        """Arriving gradients are dropped. False where gradients of gradients reach the aliases by other ways."""
        self.handed_over: set[str] = set()
        """The parameters whose contribution the recorder has."""
        self._roots: list[Tensor] = []
        self._grads: dict[int, Tensor] = {}
        self._squares: dict[str, dict[int, Tensor]] = {}
        self._again = False
        """True if a second backward pass added to what arrived, so that the norms of each pass say nothing."""
        self._replaying = False
        self._replayed: dict[str, dict[int, Tensor]] = {}
        """Squared norms of gradients that were computed again after several passes."""
        self._differing: list[Tensor] = []
        """True if gradients that were computed again are not those that were measured."""
        self._weights: Tensor | None = None
        self._totals: dict[str, Tensor] = {}
        for i, own in enumerate(aliases):
            for name, alias in own.items():
                alias.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda p, i=i, name=name: self._measure(i, name, p)
                )

    def returns(self, output: Tensor) -> None:
        """The module returned this, for all examples together."""
        place = len(self._roots)
        self._roots.append(output)
        output.register_hook(lambda grad: self._arrived(place, grad.detach()))  # type: ignore[no-untyped-call]

    def _arrived(self, place: int, grad: Tensor) -> None:
        if not self.used or self._replaying:
            return
        self._again = self._again or place in self._grads
        self._grads[place] = self._grads[place] + grad if place in self._grads else grad
        self._weights, self._totals, self._replayed = None, {}, {}

    def _measure(self, i: int, name: str, alias: Tensor) -> None:
        if self.used and alias.grad is not None:
            found = self._squares.setdefault(name, {})
            self._again = self._again or i in found  # by another way than the first time, perhaps: other outputs
            found[i] = row_squares(precise(real(alias.grad)).unsqueeze(0))[0]
            alias.grad = None

    def names(self) -> list[str]:
        """Return the parameters that something arrived at."""
        return list(self._squares)

    def keep(self) -> None:
        """Keep gradients from here on: gradients of gradients will reach the aliases by other ways than the outputs."""
        names = sorted(set(self.names()) - self.handed_over) if self.used else []
        for i, own in enumerate(self.aliases if names else ()):
            for name, grad in zip(names, self._gradients(i, names)):
                own[name].grad = grad  # what earlier backward passes brought
        self.used = False

    def gradients(self, i: int, names: Sequence[str]) -> list[Tensor]:
        """Return example i's gradients, computed again, complex ones as pairs of real numbers."""
        found = zip(names, self._gradients(i, names))
        grads = [precise(real(torch.zeros_like(self.aliases[i][name]) if g is None else g)) for name, g in found]
        self._compare(i, names, [row_squares(g.unsqueeze(0))[0] for g in grads])
        return grads

    def _gradients(self, i: int, names: Sequence[str]) -> Sequence[Tensor | None]:
        aliases = [self.aliases[i][name] for name in names]
        places = sorted(self._grads)
        roots, grads = [self._roots[p] for p in places], [self._grads[p] for p in places]
        self._replaying = True
        try:
            return torch.autograd.grad(roots, aliases, grads, retain_graph=True, allow_unused=True)
        finally:
            self._replaying = False

    def _compare(self, i: int, names: Sequence[str], squares: Sequence[Tensor]) -> None:
        """Note whether example i's gradients have other norms than before: what is added must be what was measured."""
        known = self._replayed if self._again else self._squares
        before = torch.stack([known.setdefault(n, {}).setdefault(i, s) for n, s in zip(names, squares)])
        slack = 1e-4 * before + 1e-10 * before.sum()  # of kernels that round in no fixed order
        self._differing.append(((torch.stack(list(squares)) - before).abs() > slack).any())

    def check(self) -> None:
        """Raise if gradients were others when they were computed again."""
        differing, self._differing = self._differing, []
        if differing and bool(torch.stack(differing).any()):
            raise RuntimeError(_RANDOM)

    def squares(self, name: str) -> Tensor:
        """Return every example's squared norm for a parameter."""
        if self._again:
            each = [row_squares(self.gradients(i, [name])[0].unsqueeze(0)) for i in range(len(self.aliases))]
            self.check()
            return torch.cat(each)
        found = self._squares[name]
        zero = torch.zeros_like(next(iter(found.values())))
        return torch.stack([found.get(i, zero) for i in range(len(self.aliases))])

    def total(self, name: str, weights: Tensor) -> Tensor:
        """Return Σ_i weights[i]·G_i in float64; of all parameters at once, where they have the same weights."""
        if self._weights is None or not torch.equal(self._weights, weights):
            names = self.names() if self._weights is None else [name]  # not all of them again for every weight
            self._weights, self._totals = weights.clone(), self._sum(names, weights)
        if name not in self._totals:
            self._totals |= self._sum([name], weights)
        return self._totals[name]

    def _sum(self, names: Sequence[str], weights: Tensor) -> dict[str, Tensor]:
        own = [real(self.aliases[0][name]) for name in names]
        totals = [torch.zeros(t.shape, dtype=torch.float64, device=t.device) for t in own]
        for i in weights.nonzero().flatten().tolist():
            for total, grad in zip(totals, self.gradients(i, names)):
                total.add_(grad.double() * weights[i].double())
        self.check()
        return dict(zip(names, totals))


class Replayed(Contribution):
    """The contribution of one call of an isolated module to a parameter."""

    def __init__(self, walk: Walk, name: str, kept: Tensor | None = None) -> None:
        self.walk, self.name, self.kept = walk, name, kept
        """`kept` are the examples that count, or None if all do."""
        self.value = real(walk.aliases[0][name])
        """The parameter, of whose type the gradients are, and which must stay as it is until they are added up."""
        self.batch, self.shape = len(walk.aliases), self.value.shape

    def squares(self) -> Tensor:
        found = self.walk.squares(self.name)
        return found if self.kept is None else torch.where(self.kept, found, 0)

    def instantiate(self, lo: int, hi: int) -> Tensor:
        each = [self.walk.gradients(i, [self.name])[0] for i in range(lo, hi)]
        self.walk.check()
        if self.kept is not None:
            each = [g if k else torch.zeros_like(g) for g, k in zip(each, self.kept[lo:hi].tolist())]
        return torch.stack(each)

    def widen(self, total: Tensor, weights: Tensor, first: int = TOGETHER) -> None:
        total += self.walk.total(self.name, weights if self.kept is None else weights * self.kept)

    def apart(self) -> Dense:
        return Dense(self.instantiate(0, self.batch))

    def without(self, bad: Tensor) -> Replayed:
        return Replayed(self.walk, self.name, ~bad if self.kept is None else self.kept & ~bad)
