"""`make_private`: the one verb that ties sampling, mechanisms, ledger and gradient engine to a training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tacit.accounting import Filter
from tacit.accounting.accountants import find
from tacit.gradients import attach
from tacit.ledger import AdaptiveBudget, Budget, Header, Ledger
from tacit.ledger.correlation import Correlation
from tacit.mechanisms import Allocation, Strategy
from tacit.sampling import Owners
from tacit.training.advice import advise, tell_first_step
from tacit.training.arguments import check_kinds, explained, strategies
from tacit.training.arithmetic import exact_arithmetic
from tacit.training.clip_notice import clipping_noticed
from tacit.training.collated_rows import Rows
from tacit.training.correlation import check_correlated, grouped
from tacit.training.loaders import reading
from tacit.training.malloc_tuning import freed_memory_kept
from tacit.training.noise_level import noise_level, sums_with_noise
from tacit.training.population import population
from tacit.training.processes import assemble, check_processes
from tacit.training.rank_agreement import data_facts, model_facts, plan_facts
from tacit.training.run import PrivateRun
from tacit.training.run_settings import RunSettings, Schedule, by_step, check_sizes, length, physical_batch_size
from tacit.training.shards import has_shards
from tacit.training.shared_ledger import open_ledger
from tacit.training.tally import Metric
from tacit.training.team import Parallel
from tacit.training.trial import Trial
from tacit.training.updates import check_optimizer, tell_gradient_hooks
from tacit.training.wrappers import unwrapped


@explained
def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    lot_size: Schedule[int],
    clipping: Schedule[float] | Schedule[Strategy],
    epochs: float | None = None,
    steps: int | None = None,
    budget: Budget | AdaptiveBudget | None = None,
    noise_multiplier: Schedule[float] | None = None,
    noise: str | Schedule[Allocation] | Correlation = "proportional",
    ledger: Ledger | str | Path | None = None,
    batch_size: int | None = None,
    sampling: str = "poisson",
    participations: int = 1,
    max_lot_size: int | None = None,
    adjacency: str | None = None,
    users: Sequence[int] | None = None,
    examples_per_user: int | None = None,
    owners: Owners | None = None,
    records_per_owner: int | None = None,
    ownership: Literal["public", "private"] = "public",
    microbatch_size: int = 1,
    metrics: Mapping[str, Metric] | None = None,
    reduction: str | None = None,
    batch_dim: Any = 0,
    isolate: Sequence[str] | bool | None = None,
    split: Callable[[Any], Sequence[Any]] | None = None,
    accountant: str = "pld",
    num_workers: int | None = None,
    pin_memory: bool | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    purpose: str = "",
    public_buffers: Sequence[str] = (),
    parallel: Parallel | None = None,
    trial: bool = True,
    seed: int | None = None,
) -> PrivateRun:
    """Return a `PrivateRun` that trains ``model`` with ``optimizer`` on ``dataset`` and hides each single record.

    * **Data.** ``dataset`` has a length and ``dataset[i]``. From a DataLoader the run takes the data set and, unless
      given, ``collate_fn``, ``num_workers`` and ``pin_memory``; it replaces sampler and batch size.
    * **Length.** Give ``epochs`` or ``steps``. ``lot_size`` is the expected number of records of a step (of users, if
      you give ``users``). ``batch_size`` bounds the records in memory, at most 2048, and changes nothing else.
    * **Noise.** ``noise_multiplier`` is z of a whole step. Without it, the run solves for z, so that all steps and the
      steps already in the ledger fit the ``budget``. With both, the run ends before the step that would overrun.
        * ``noise`` divides the noise among the groups: ``"proportional"``, ``"dimension-adjusted"`` or an `Allocation`.
        * ``noise="discrete"`` divides like ``"proportional"`` and adds exact discrete Gaussian noise to every sum
          that the steps release, rounded to a lattice (`tacit.mechanisms.Discrete`).
        * ``noise="correlated"``, or a strategy of `tacit.mechanisms.strategies`, needs ``sampling="cyclic"``: a step
          takes back part of the noise of earlier steps. The noise multiplier is that of each step's fresh noise.
          ``run.save`` keeps the key of past noise in a file beside the ledger.
    * **Clipping.** ``clipping`` is a clip norm S, which means ``Flat(S)``, or a strategy. ``clipping``,
      ``noise_multiplier``, ``noise`` and ``lot_size`` may be functions of the step's number.
    * **Sampling.** One of
        * ``"poisson"``: each record takes part by its own coin; ``"fixed-size"``: lots of one size (replace-one);
        * ``"allocation"``: each record is in exactly ``participations`` lots of an epoch, chosen by its own coins; as
          cheap as shuffling, and about as private as Poisson sampling;
        * ``"shuffled"``: each record is in one lot of an epoch; no amplification is claimed;
        * ``"cyclic"``: groups of records take turns, for correlated noise.
    * ``max_lot_size`` gives all batches the same ``batch_size`` rows, for accelerators: the run drops the excess of a
      larger Poisson lot, whose probability is added to δ, and fills up smaller lots with examples of weight zero. The
      first ``run.real_rows`` rows are records.
    * **Unit.** One example, unless you give one of
        * ``users``, the user of each example: the unit is the user, with at most ``examples_per_user`` examples in a
          lot, each clipped alone and all charged together;
        * ``owners``, a list of owners for each example: the unit is the owner, of whom at most ``records_per_owner``
          examples take part in the run, each by its own coin. With ``ownership="public"`` the owners of the examples
          are assumed public, the run leaves out examples beyond the bound, and neighbours differ in the content of one
          owner's examples. With ``"private"`` every owner must have at most so many examples (`tacit.sampling.owners`);
        * ``microbatch_size`` m: the unit is a microbatch of m consecutive examples, fixed before sampling. ``lot_size``
          counts microbatches, and the run clips the average gradient of each. A changed example replaces one
          microbatch, which costs as much as a removal and an addition. An example added or removed shifts all later
          ones to other microbatches, so the guarantee says nothing about it.
    * **Model.** The engine refuses a model that mixes examples.
        * ``isolate``: the engine runs a module that it cannot follow (it reads values of the batch, or has a custom
          autograd function) one example at a time, which is exact and slower. It plans these modules with the first
          batch, logs them and lists them in ``run.engine.isolated``. Names of modules add to the plan, ``True``
          isolates the whole model (for gradient penalties in the loop), and ``False`` refuses modules that the engine
          cannot follow.
        * ``split`` divides an argument of the model that is one object for the whole batch (graphs in one list of
          nodes) into one object for each example. Batches of ``torch_geometric`` need no ``split``.
        * ``public_buffers`` lists buffers, by name or pattern, that the forward pass may write, because their values do
          not depend on the records (a counter, the vectors of a spectral norm).
        * The run switches PyTorch's TF32 and bfloat16 products off on the model's devices until it is closed, because
          no sensitivity is proved for such products.
    * **Several processes.** ``parallel=Parallel()``, in each of several processes (see `torchrun`), trains one model
      with all of them: the same lots, ledger and noise as in one process. Parameters may be sharded (`fully_shard`),
      and the model may be wrapped in `DistributedDataParallel`, which then only passes batches on.
    * **Trial.** The first lot of at least four records begins with three batches that count for nothing. They hold up
      to seven of the lot's records, together and in two parts, and your loop treats them like any batch;
      ``run.in_trial`` is then True. If a record's gradient or observed value depends on the other records, the run
      raises a ValueError. Afterwards it restores schedules of PyTorch, buffers, statistics and random numbers.
      ``trial=False`` omits the trial. ``seed``, for debugging, marks the run as not private.

    Your part of the guarantee: a row of a batch is one record, and is computed from that record alone in the data
    set, in ``collate_fn`` and in the loop before the model: no mixing of examples, no padding to the longest example,
    no decision for all examples because of one. The engine follows the batch from `run.batches` on and refuses mixing,
    but it does not see the data set, ``collate_fn``, NumPy or Python numbers. The trial finds mixing there in the first
    lot, unless it depends on chance, and not in later lots.
    No value of a batch may stay in the model. The run compares buffers by value all through the run, and parameters
    from the batch to ``optimizer.step()`` (frozen ones by a sum of their bits); it restores changed values and raises
    an error. It does not watch ordinary attributes of modules, public buffers written by way of NumPy or Python
    numbers, or parameters written between ``optimizer.step()`` and the next batch; these must not use the records. The
    number of records (or users) is assumed public.
    """
    check_kinds(
        model=model,
        optimizer=optimizer,
        budget=budget,
        ledger=ledger,
        metrics=metrics,
        public_buffers=public_buffers,
        purpose=purpose,
        parallel=parallel,
        noise_multiplier=noise_multiplier,
        sampling=sampling,
    )
    read = reading(dataset, num_workers=num_workers, pin_memory=pin_memory, collate_fn=collate_fn)
    dataset = read.dataset
    model, quiet = unwrapped(model)
    team = assemble(parallel, model)
    check_processes(team, ledger=ledger, optimizer=optimizer, max_lot_size=max_lot_size)
    people = population(
        dataset,
        sampling=sampling,
        adjacency=adjacency,
        users=users,
        examples_per_user=examples_per_user,
        microbatch_size=microbatch_size,
        participations=participations,
        max_lot_size=max_lot_size,
        owners=owners,
        records_per_owner=records_per_owner,
        ownership=ownership,
    )
    team.agree("number of records", lambda: str(people.records))
    team.agree("data set", lambda: data_facts(dataset, users if people.owned is None else people.owned.chosen))
    team.agree("model", lambda: model_facts(model, optimizer))
    team.begin_alike(model)
    correlation = check_correlated(
        noise,
        sampling=sampling,
        clipping=clipping,
        noise_multiplier=noise_multiplier,
        lot_size=lot_size,
        budget=budget,
        processes=team.size,
        shards=has_shards(model),
    )
    total = length(epochs, steps, people.records, lot_size)
    check_sizes(lot_size, total, people.records, sampling=sampling)
    find(accountant)
    source = team.source(seed)
    sizes = by_step(lot_size)
    groups = 1
    if correlation is not None:
        correlation, groups = grouped(
            correlation,
            people,
            lot_size=sizes(0),
            steps=total,
            budget=budget,
            noise_multiplier=noise_multiplier,
        )
    sampler = people.sampler(sizes(0), source, groups)
    size = physical_batch_size(batch_size, sizes(0), microbatch_size, max_lot_size)
    reader = read.in_batches(size)
    header = Header(adjacency=people.adjacency, unit=people.unit, secure_randomness=source.secure, purpose=purpose)
    with ExitStack() as undo:
        until_closed = undo.enter_context(ExitStack())
        until_closed.enter_context(exact_arithmetic(model))
        until_closed.enter_context(quiet)
        tell_gradient_hooks(model)
        engine = attach(
            model,
            reduction=reduction,  # type: ignore[arg-type]
            batch_dim=batch_dim,
            rows_per_record=microbatch_size,
            isolate=isolate,
            split=split,
        )
        undo.callback(engine.detach)
        check_optimizer(optimizer, engine.parameters)
        book = team.ledger(lambda: open_ledger(ledger, header))
        if book is not ledger:
            undo.callback(book.close)
        if isinstance(ledger, str | Path):
            until_closed.callback(book.close)  # the run alone holds it; the next run may go on with the file

        level = noise_level(
            noise,
            noise_multiplier,
            correlation,
            budget=budget,
            people=people,
            lot_size=lot_size,
            steps=total,
            groups=groups,
            accountant=accountant,
            book=book,
            source=source,
        )
        settings = RunSettings(
            steps=total,
            clipping=strategies(clipping),
            noise=level.noise,
            lot_size=sizes,
            batch_size=size,
            microbatch_size=microbatch_size,
            max_lot_size=max_lot_size,
            allocate=level.allocate,
            solved=level.solved,
        )
        if not isinstance(budget, AdaptiveBudget) and any(map(callable, (clipping, noise, noise_multiplier))):
            settings.check_schedules()
        until_closed.enter_context(clipping_noticed(engine.parameters.values()))
        if not has_shards(model):  # with shards memory is short: what was gathered must be given back
            until_closed.enter_context(freed_memory_kept())
        run = PrivateRun(
            model=model,
            optimizer=optimizer,
            engine=engine,
            sums=sums_with_noise(
                engine, model, sampler, team, lambda: team.own_source(seed), correlated=correlation is not None
            ),
            sampler=sampler,
            reader=reader,
            settings=settings,
            ledger=book,
            source=source,
            metrics=metrics or {},
            budget=budget,
            accountant=accountant,
            team=team,
            public_buffers=public_buffers,
            until_closed=until_closed,
            trial=Trial(
                engine,
                model,
                optimizer,
                wanted=trial and not (team.rank and has_shards(model)),  # of sharded ones the first process tells
                sharded=has_shards(model),
                rows=Rows(microbatch_size, batch_dim if isinstance(batch_dim, int) else None),
            ),
        )
        undo.callback(run.close)
        tell_first_step(run)
        if team.rank == 0:
            advise(run, dataset)
        team.agree("plan", lambda: plan_facts(run, parallel=parallel, secure=source.secure))
        undo.pop_all()
    if budget is not None and team.rank == 0:
        book.guard(Filter(budget, accountant=accountant))
    return run
