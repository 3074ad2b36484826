"""Records that are not single gradients: microbatches of several examples, and users with several examples each.

The unit of the guarantee decides what is charged:

* *unit = microbatch*: microbatches are fixed before sampling and sampled as wholes. One record is one clipped
  vector: any strategy as it is, with ``unit="microbatch"`` in the sampling event. The guarantee is about microbatches,
  and so also about an example whose values change: that replaces one microbatch. It is not about an example added or
  removed where microbatches are consecutive examples: all later ones would then be cut elsewhere.
* *unit = example, add/remove*: the examples of the lot are spread over microbatches by `assign`, each microbatch's
  average gradient is clipped to S, and the clipped averages are added. One example more or fewer turns the average of
  one microbatch into another, both of norm at most S, so the sum moves by at most 2 S: `Microbatches`.
* *unit = user*, each of at most k examples clipped on its own: the sum moves by at most k S: `Repeated`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.mechanisms.clipping import Strategy
from tacit.mechanisms.groups import Clipping, Shapes
from tacit.randomness import Integers, Source


@dataclass(frozen=True)
class Microbatches:
    """``clipping`` applied to averages over microbatches, for a guarantee about examples: charged at 2 S.

    Formal guarantee: under add/remove of one example the sum of clipped averages moves by at most 2 S_g in every
    group, provided the microbatch of each example does not depend on the other examples (`assign` sees to that; cutting
    the lot into consecutive pieces does not: one example more shifts all that follow). A microbatch without examples
    contributes zero. Under replace-one the accountants double S themselves: use ``clipping`` as it is.
    """

    clipping: Strategy

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> Clipping:
        return self.clipping.bind(shapes, lot_size=lot_size).repeated(2)


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """``clipping`` applied to each of up to ``most`` contributions of one record: charged at ``most`` times S.

    Formal guarantee: a record that brings at most ``most`` vectors, each clipped to norm S_g, moves the sum by at most
    ``most`` * S_g when it is added or removed (the triangle inequality).
    """

    clipping: Strategy
    most: int

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 1:
            raise ValueError(f"most is {self.most!r}; it must be a whole number, at least 1.")

    def bind(self, shapes: Shapes, *, lot_size: float | None = None) -> Clipping:
        return self.clipping.bind(shapes, lot_size=lot_size).repeated(self.most)


def assign(examples: int, microbatches: int, source: Source) -> Integers:
    """The microbatch of each example of a lot, drawn independently of the others, so that one example moves one."""
    return source.integers(microbatches, examples)
