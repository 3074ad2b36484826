"""`make_private`: the one verb that ties sampling, mechanisms, ledger and gradient engine to a training loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, Union

import torch
from torch import nn

from tacit.accounting import Filter, plan
from tacit.accounting.accountants import find
from tacit.gradients import Engine, attach
from tacit.ledger import AdaptiveBudget, Adjacency, Budget, Header, Ledger, Step
from tacit.mechanisms import Allocation, DimensionAdjusted, Proportional, Strategy
from tacit.randomness import SecureSource, SeededSource, Source
from tacit.sampling import FixedSizeSampler, LotReader, PoissonSampler, Sampler, ShuffledSampler, UserSampler
from tacit.training.run import PrivateRun, Recipe
from tacit.training.tally import Metric

log = logging.getLogger("tacit")

T = TypeVar("T")
Schedule: TypeAlias = Union[T, Callable[[int], T]]  # noqa: UP007
"""A value for all steps, or a function of the step's number, which must not depend on the records."""

_ALLOCATIONS: dict[str, Callable[[float], Allocation]] = {
    "proportional": Proportional,
    "dimension-adjusted": DimensionAdjusted,
}


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    lot_size: Schedule[int],
    clipping: Schedule[Strategy],
    epochs: float | None = None,
    steps: int | None = None,
    budget: Budget | AdaptiveBudget | None = None,
    noise_multiplier: Schedule[float] | None = None,
    noise: str | Schedule[Allocation] = "proportional",
    ledger: Ledger | str | Path | None = None,
    batch_size: int | None = None,
    sampling: str = "poisson",
    adjacency: str | None = None,
    users: Sequence[int] | None = None,
    examples_per_user: int | None = None,
    microbatch_size: int = 1,
    metrics: Mapping[str, Metric] | None = None,
    reduction: str | None = None,
    batch_dim: Any = 0,
    accountant: str = "pld",
    workers: int = 0,
    pin_memory: bool = False,
    collate: Callable[[list[Any]], Any] | None = None,
    purpose: str = "",
    public_buffers: Sequence[str] = (),
    seed: int | None = None,
) -> PrivateRun:
    """Train ``model`` with ``optimizer`` on ``dataset`` so that no record shows.

    * How long: ``epochs`` or ``steps``; how many records a lot has on average: ``lot_size`` (of users, with ``users``).
    * How much noise: ``noise_multiplier`` is z of a whole step, shared among the clipping groups by ``noise``
      (``"proportional"``, ``"dimension-adjusted"`` or an `Allocation`). Without it, z is solved for so that all steps,
      and what the ledger already holds, fit the ``budget``. With both, the run ends before the step that would overrun.
    * ``clipping``, ``noise_multiplier``, ``noise`` and ``lot_size`` may be functions of the step's number.
    * ``sampling``: ``"poisson"``, ``"fixed-size"`` (replace-one) or ``"shuffled"`` (no amplification claimed).
    * ``users`` gives the user of each example: the unit is then the user, with at most ``examples_per_user`` examples
      in a lot, each clipped alone and charged together.
    * ``microbatch_size`` m makes a microbatch of m consecutive examples the record: fixed before sampling, sampled as a
      whole (``lot_size`` counts microbatches), its average gradient clipped. The guarantee's unit is then the
      microbatch; a change of one example replaces one, which costs as much as removing one and adding another.
    * ``batch_size`` bounds what is in memory at once and changes nothing else.
    * ``seed`` is for debugging: the run is then marked as not private.

    * ``public_buffers`` lists buffers, by name or pattern, that the forward pass may write because what it writes does
      not depend on the records (a counter, the vectors of a spectral norm).

    What the caller owes: a row of a batch is one record and is made from that record alone, in the data set, in
    ``collate`` and in the loop before the model (no mixing of examples, no padding to the longest of others, no
    decision for all examples because of one). The engine follows the batch from `run.batches` on and refuses mixing,
    but not what happens in the data set, in ``collate`` or by way of NumPy or Python numbers.
    The number of records (or users) is taken to be public.
    """
    if not isinstance(lot_size, int) and not callable(lot_size):
        raise ValueError(f"lot_size is {lot_size!r}; it must be a whole number, or a function of the step.")
    _check_one_process(model)
    records = _records(dataset, users, microbatch_size)
    sizes = _schedule(lot_size)
    if not 1 <= sizes(0) <= records:
        raise ValueError(f"lot_size is {sizes(0)}; it must be from 1 to the number of records, {records}.")
    unit = "user" if users is not None else "example" if microbatch_size == 1 else "microbatch"
    chosen = Adjacency(adjacency or ("replace-one" if sampling == "fixed-size" else "add/remove"))
    if sampling == "fixed-size" and chosen is Adjacency.ADD_REMOVE:
        raise ValueError(
            "fixed-size sampling has no proof under add/remove; use adjacency='replace-one' or Poisson sampling."
        )
    find(accountant)
    source: Source = SecureSource() if seed is None else SeededSource(seed)
    total = _steps(epochs, steps, records, sizes)
    sampler = _sampler(sampling, records, sizes(0), source, unit)
    drawer: Sampler | UserSampler = sampler
    if users is not None:
        if examples_per_user is None:
            raise ValueError("examples_per_user is missing; say how many examples a user may bring to a lot.")
        drawer = UserSampler(users, sampler, most=examples_per_user, source=source)
    elif examples_per_user is not None:
        raise ValueError(
            f"examples_per_user is {examples_per_user} but users is missing; give the user of each example."
        )
    wanted = batch_size or max(1, min(math.ceil(2 * sizes(0) * microbatch_size), 4096))
    size = max(wanted // microbatch_size, 1) * microbatch_size if microbatch_size > 1 else wanted
    reader = LotReader(dataset, batch_size=size, workers=workers, pin_memory=pin_memory, collate=collate)
    book = _ledger(ledger, Header(adjacency=chosen, unit=unit, secure_randomness=source.secure, purpose=purpose))
    run: PrivateRun | None = None
    engine: Engine | None = None
    try:
        engine = attach(model, reduction=reduction, batch_dim=batch_dim, rows_per_record=microbatch_size)  # type: ignore[arg-type]
        _check_parameters(optimizer, engine.parameters)
        strength, solved = _noise(
            noise, noise_multiplier, budget, book, records, sizes, total, sampling, chosen, accountant
        )
        recipe = Recipe(
            steps=total,
            clipping=_schedule(clipping),
            noise=strength,
            lot_size=sizes,
            batch_size=size,
            microbatch_size=microbatch_size,
            solved=solved,
        )
        run = PrivateRun(
            model=model,
            optimizer=optimizer,
            engine=engine,
            sampler=drawer,
            reader=reader,
            recipe=recipe,
            ledger=book,
            source=source,
            metrics=metrics or {},
            budget=budget,
            accountant=accountant,
            public_buffers=public_buffers,
        )
        composed = run.noise_multiplier
    except BaseException:
        if run is not None:
            run.close()
        elif engine is not None:
            engine.detach()
        if book is not ledger:
            book.close()
        raise
    if budget is not None:
        book.guard(Filter(budget, accountant=accountant))
    log.info("private run: %d steps, noise multiplier %.4g of a whole step", total, composed)
    return run


def _check_one_process(model: nn.Module) -> None:
    """Several processes would each draw, clip and add noise for themselves: that is not one private run."""
    processes = 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        processes = torch.distributed.get_world_size()
    if processes > 1 or isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"a private run works in one process on an unwrapped model; this is a {type(model).__name__} among "
            f"{processes} processes. Run it in one process, on the inner model."
        )


def _records(dataset: Any, users: Sequence[int] | None, microbatch_size: int) -> int:
    if isinstance(microbatch_size, bool) or not isinstance(microbatch_size, int) or microbatch_size < 1:
        raise ValueError(f"microbatch_size is {microbatch_size!r}; it must be a whole number, at least 1.")
    if users is not None and microbatch_size > 1:
        raise ValueError("a record is either a user or a microbatch; give users or microbatch_size.")
    try:
        length = len(dataset)
    except TypeError:
        raise ValueError(
            f"a {type(dataset).__name__} has no length; private sampling needs a map-style data set."
        ) from None
    if not length:
        raise ValueError("the data set is empty.")
    if users is None:
        if length < microbatch_size:
            raise ValueError(f"microbatch_size is {microbatch_size}; the data set has only {length} examples.")
        return length // microbatch_size  # examples that do not fill a microbatch take no part
    if len(users) != length:
        raise ValueError(f"users has {len(users)} entries; the data set has {length} examples.")
    return int(max(users)) + 1


def _schedule(value: Any) -> Callable[[int], Any]:
    return value if callable(value) else lambda step: value


def _ledger(given: Ledger | str | Path | None, header: Header) -> Ledger:
    if given is None:
        return Ledger(header)
    if isinstance(given, Ledger):
        _check_header(given, header)
        return given
    if not Path(given).exists():
        return Ledger.open(given, header)
    book = Ledger.open(given)  # begun by an earlier run, perhaps for another purpose
    try:
        _check_header(book, header)
    except ValueError:
        book.close()
        raise
    return book


def _check_header(book: Ledger, header: Header) -> None:
    for name in ("adjacency", "unit"):
        held, needed = getattr(book.header, name), getattr(header, name)
        if held != needed:
            raise ValueError(f"the ledger's {name} is {held}; this run needs {needed}: give it a ledger of its own.")
    if book.header.secure_randomness and not header.secure_randomness:
        raise ValueError("the ledger promises secure randomness; a seeded run needs a ledger of its own.")


def _steps(epochs: float | None, steps: int | None, records: int, sizes: Callable[[int], int]) -> int:
    if (epochs is None) == (steps is None):
        raise ValueError(f"epochs is {epochs!r} and steps is {steps!r}; give one of them.")
    if steps is not None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps is {steps!r}; it must be a whole number, at least 1.")
        return steps
    assert epochs is not None
    if not 0 < epochs < math.inf:
        raise ValueError(f"epochs is {epochs!r}; it must be a finite number above 0.")
    wanted, seen, count = Fraction(str(epochs)) * records, Fraction(0), 0
    if sizes(0) == sizes(1) == sizes(10**6):
        return max(1, math.ceil(wanted / sizes(0)))
    while seen < wanted:
        if sizes(count) < 1:
            raise ValueError(f"lot_size is {sizes(count)} at step {count}; it must be at least 1.")
        seen, count = seen + sizes(count), count + 1
    return count


def _sampler(sampling: str, records: int, size: int, source: Source, unit: str) -> Sampler:
    if sampling == "poisson":
        return PoissonSampler(records, size / records, source=source, unit=unit)
    if sampling == "fixed-size":
        return FixedSizeSampler(records, size, source=source, unit=unit)
    if sampling == "shuffled":
        return ShuffledSampler(records, math.ceil(records / size), source=source, unit=unit)
    raise ValueError(f"sampling is {sampling!r}; choose 'poisson', 'fixed-size' or 'shuffled'.")


def _check_parameters(optimizer: torch.optim.Optimizer, recorded: Mapping[str, torch.Tensor]) -> None:
    """The optimizer must update exactly what the engine sees: nothing un-noised, nothing paid for in vain."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS evaluates its closure several times a step; each would be a release. Use another one.")
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    missing = [name for name, parameter in recorded.items() if parameter not in held]
    if missing:
        raise ValueError(
            f"the optimizer does not hold {', '.join(missing)}; add them, or freeze them with requires_grad_(False): "
            "they would take part in clipping and cost noise for nothing."
        )
    foreign = [parameter for parameter in held if parameter.requires_grad and not _holds(recorded, parameter)]
    if foreign:
        raise ValueError(
            f"the optimizer holds {len(foreign)} trainable parameters that are not the model's; their gradients would "
            "not be private. Make them part of the model, or freeze them."
        )


def _holds(recorded: Mapping[str, torch.Tensor], parameter: torch.Tensor) -> bool:
    return any(parameter is own for own in recorded.values())


def _noise(
    noise: str | Schedule[Allocation],
    multiplier: Schedule[float] | None,
    budget: Budget | AdaptiveBudget | None,
    book: Ledger,
    records: int,
    sizes: Callable[[int], int],
    steps: int,
    sampling: str,
    adjacency: Adjacency,
    accountant: str,
) -> tuple[Callable[[int], Allocation], float | None]:
    """The noise of each step, and the noise multiplier if it was solved for."""
    if not isinstance(noise, str):
        if multiplier is not None:
            raise ValueError("noise is an allocation and has its noise multiplier in it; leave noise_multiplier out.")
        return _schedule(noise), None
    if noise not in _ALLOCATIONS:
        raise ValueError(f"noise is {noise!r}; choose {', '.join(map(repr, _ALLOCATIONS))}, or give an allocation.")
    allocate, solved = _ALLOCATIONS[noise], None
    if multiplier is None:
        if budget is None:
            raise ValueError("give a budget, from which the noise is solved, or a noise_multiplier.")
        if isinstance(budget, AdaptiveBudget):
            raise ValueError("an AdaptiveBudget only says when to stop; give noise_multiplier too.")
        multiplier = solved = _solve(budget, book.entries, records, sizes, steps, sampling, adjacency, accountant)
    levels = _schedule(multiplier)
    return (lambda step: allocate(levels(step))), solved


def _solve(
    budget: Budget,
    entries: Sequence[tuple[Step, int]],
    records: int,
    sizes: Callable[[int], int],
    steps: int,
    sampling: str,
    adjacency: Adjacency,
    accountant: str,
) -> float:
    if len({sizes(step) for step in (0, 1, steps // 2, steps - 1)}) > 1:
        raise ValueError("with a changing lot size the noise is not solved for; give noise_multiplier too.")
    return plan(
        records=records,
        lot_size=sizes(0),
        steps=steps,
        epsilon=budget.epsilon,
        delta=budget.delta,
        sampling=sampling,
        adjacency=adjacency.value,
        accountant=accountant,
        also=entries,
    ).noise_multiplier
