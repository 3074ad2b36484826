"""One private model trained by several processes: the same as by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Run = Callable[..., list[dict[str, Any]]]

TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
run = tacit.make_private(
    model, optimizer, data, lot_size=20, batch_size=7, steps=20, clipping=tacit.{clipping}, noise_multiplier=1.0,
    metrics={{"loss": tacit.Metric(bound=3.0)}}, ledger=out / f"ledger-{{world}}.jsonl", seed=3, parallel=parallel,
    {more}
)
for bx, by in run.batches():
    loss = F.cross_entropy(model(bx), by, reduction="none")
    run.observe(loss=loss.detach().view(-1, run.settings.microbatch_size).mean(1))
    loss.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
save(weights=weights, loss=torch.tensor(run.metrics["loss"]), epsilon=torch.tensor(run.guarantee(1e-5).epsilon),
     steps=torch.tensor(len(run.ledger)))
"""

KINDS = {
    "flat": ("Flat(1.0)", ""),
    "per layer": ("PerLayer(total=1.0)", ""),
    "adaptive": ("Adaptive(initial=1.0)", ""),
    "fixed size": ("Flat(1.0)", 'sampling="fixed-size"'),
    "discrete": ("Flat(1.0)", 'noise="discrete"'),
    "shuffled": ("Flat(1.0)", 'sampling="shuffled"'),
    "microbatches": ("Flat(1.0)", "microbatch_size=2"),
    "users": ("Flat(1.0)", "users=[i // 4 for i in range(200)], examples_per_user=2"),
}


FAST = ("flat", "users")


@pytest.mark.parametrize(
    "kind", [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_twenty_steps_by_two_processes_are_those_of_one(processes: Run, kind: str) -> None:
    clipping, more = KINDS[kind]
    code = TRAIN.format(clipping=clipping, more=more)
    (alone,) = processes(code, 1)
    first, second = processes(code, 2)
    assert torch.equal(first["weights"], second["weights"])
    assert first.keys() == alone.keys()
    for name in alone:
        # Each process rounds its own part of a discrete sum: that is within a lattice step or two, not the same.
        slack = 2e-3 if kind == "discrete" else 1e-6
        assert torch.allclose(first[name], alone[name], rtol=slack, atol=slack), name
        assert torch.equal(first[name], second[name]), name


def test_an_empty_share_still_takes_part(processes: Run) -> None:
    """Elsewhere a process without examples skipped the step, and the processes waited for each other for ever."""
    code = TRAIN.format(clipping="Flat(1.0)", more="").replace("lot_size=20", "lot_size=1")
    first, second = processes(code, 2)
    assert torch.equal(first["weights"], second["weights"]) and int(first["steps"]) == 20


NOISE = """
model = nn.Linear(1000, 50)
run = tacit.make_private(
    model, torch.optim.SGD(model.parameters(), lr=1.0), torch.utils.data.TensorDataset(torch.zeros(40, 1000)),
    lot_size=4, steps=4, clipping=tacit.Flat(1.0), noise_multiplier=2.0, parallel=parallel, trial=False,
)
drawn = []
for (bx,) in run.batches():
    (0.0 * model(bx)).sum().backward()  # nothing but noise
    run.optimizer.step()
    drawn.append(model.weight.grad.flatten().clone() * 4.0)
    run.optimizer.zero_grad()
own = torch.zeros(2000)
run._source.normal_(own)
save(drawn=torch.stack(drawn), own=own, std=torch.tensor(run.ledger.entries[0][0].queries[0].noise_std))
"""


@pytest.mark.parametrize("noise", ["first", "split"])
def test_the_noise_of_the_sum_is_as_recorded_whichever_process_adds_it(processes: Run, noise: str) -> None:
    """Elsewhere it was added once per process, or divided by their number, or not at all."""
    first, second = processes(NOISE, 2, noise=noise)
    drawn = first["drawn"].double()
    assert torch.equal(first["drawn"], second["drawn"])
    count = drawn.numel()
    # The sample variance of normal values has deviation σ² sqrt(2 / n), the mean σ / sqrt(n); 6.2 of them: 1e-9.
    recorded = float(first["std"])
    assert recorded == pytest.approx(2.0, rel=0.02)  # and a margin for rounding
    assert abs(float(drawn.var()) / recorded**2 - 1) < 6.2 * (2 / count) ** 0.5
    assert abs(float(drawn.mean())) < 6.2 * 2.0 / count**0.5
    steps = torch.corrcoef(drawn).fill_diagonal_(0.0)
    assert float(steps.abs().max()) < 6.5 / drawn.shape[1] ** 0.5
    keys = torch.corrcoef(torch.stack([first["own"], second["own"]]).double())[0, 1]
    assert abs(float(keys)) < 6.2 / 2000**0.5  # every process has a key of its own


def test_seeded_processes_do_not_draw_the_same_noise(processes: Run) -> None:
    code = NOISE.replace("parallel=parallel", "parallel=parallel, seed=5")
    first, second = processes(code, 2, noise="split")
    assert not torch.equal(first["own"], second["own"])
    spread = float(first["drawn"].double().var()) / float(first["std"]) ** 2
    assert abs(spread - 1) < 6.2 * (2 / first["drawn"].numel()) ** 0.5


SHARES = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = tacit.make_private(
    model, optimizer, torch.arange(200.0, dtype=torch.float64)[:, None].expand(200, 5).contiguous(), lot_size=50,
    steps=200, clipping=tacit.Flat(1.0), noise_multiplier=1.0, parallel=parallel, trial=False,
)
seen = []
for bx in run.batches():
    seen.append(torch.zeros(200).index_fill_(0, bx[:, 0].detach().as_subclass(torch.Tensor).long(), 1.0))
    model(bx).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
save(seen=torch.stack(seen))
"""


def test_processes_draw_one_lot_and_never_the_same_record(processes: Run) -> None:
    """Elsewhere every process saw the same data, or equal seeds gave all of them the same sample."""
    first, second = (each["seen"] for each in processes(SHARES, 2))
    assert float((first * second).max()) == 0.0
    both = first + second
    rate = both.mean(dim=0)
    assert float((rate - 0.25).abs().max()) < 6.5 * (0.25 * 0.75 / 200) ** 0.5
    sizes = torch.stack([first.sum(1), second.sum(1)])
    assert float((sizes[0] - sizes[1]).abs().max()) <= 1.0  # places of one random order, dealt in turn
    assert float(sizes.sum(0).std()) > 3.0


RESUME = """
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
run = tacit.make_private(
    model, optimizer, data, lot_size=20, steps=8, clipping=tacit.Flat(1.0), noise_multiplier=1.0,
    ledger=out / "ledger.jsonl", parallel=parallel,
)
if (out / "point").exists():
    run.load(out / "point")
began = run.step
for bx, by in run.batches():
    F.cross_entropy(model(bx), by).backward()
    optimizer.step()
    optimizer.zero_grad()
    if run.step == began + 4:
        break
run.save(out / "point")
save(began=torch.tensor(began), steps=torch.tensor(len(run.ledger)),
     weights=torch.cat([p.detach().flatten() for p in model.parameters()]))
"""


def test_a_run_resumes_with_another_number_of_processes(processes: Run, tmp_path: Path) -> None:
    first, second = processes(RESUME, 2)
    assert torch.equal(first["weights"], second["weights"]) and int(first["steps"]) == 4
    (alone,) = processes(RESUME, 1)
    assert (int(alone["began"]), int(alone["steps"])) == (4, 8)
    assert not torch.equal(alone["weights"], first["weights"])


DYING = """
import signal
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = tacit.make_private(
    model, optimizer, data, lot_size=20, steps=50, clipping=tacit.Flat(1.0), noise_multiplier=1.0,
    ledger=out / "ledger.jsonl", parallel=parallel,
)
taken = 0
try:
    for bx, by in run.batches():
        F.cross_entropy(model(bx), by).backward()
        if run.step == 5 and rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        taken = run.step
except RuntimeError as error:
    save(taken=torch.tensor(taken))
    print("ended:", error)
    sys.stdout.flush()
    os._exit(3)
"""


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_when_one_process_dies_the_step_ends_for_all_and_stays_charged(
    processes: Run, tmp_path: Path, victim: int
) -> None:
    from tacit import Ledger

    codes = [-9, 3] if victim == 0 else [3, -9]
    results = processes(DYING, 2, codes=codes, victim=victim)
    assert int(results[1 - victim]["taken"]) == 5
    assert "ended:" in (tmp_path / f"told-{1 - victim}").read_text()
    assert len(Ledger.load(tmp_path / "ledger.jsonl")) == 6  # the step in which it died included


BUDGET = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = tacit.make_private(
    model, optimizer, data, lot_size=20, steps=500, clipping=tacit.Flat(1.0), noise_multiplier=1.0,
    budget=tacit.Budget(3.0, 1e-5), parallel=parallel,
)
for bx, by in run.batches():
    F.cross_entropy(model(bx), by).backward()
    optimizer.step()
    optimizer.zero_grad()
save(taken=torch.tensor(run.step), epsilon=torch.tensor(run.guarantee().epsilon))
"""


def test_one_budget_ends_the_run_in_every_process(processes: Run) -> None:
    first, second = processes(BUDGET, 2)
    assert 0 < int(first["taken"]) == int(second["taken"]) < 500
    assert 2.5 < float(first["epsilon"]) == float(second["epsilon"]) <= 3.0


ODD = """
odd = rank == 1
settings = dict(lot_size=20, steps=5, clipping=tacit.Flat(1.0), noise_multiplier=1.0, parallel=parallel)
settings |= {changed} if odd else {{}}
rows = x
{before}
try:
    tacit.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, **settings)
except ValueError as error:
    assert "process 1 has another {what}" in str(error), error
    save(refused=torch.tensor(1))
"""

DISAGREE = {
    "fewer records": ("number of records", "{}", "rows = x[:150] if odd else x"),
    "another order": ("data set", "{}", "rows = x.flip(0) if odd else x"),
    "another model": ("model", "{}", "model = nn.Linear(5, 3).double() if odd else model"),
    "whose noise": ("plan", "{'parallel': tacit.Parallel(noise='split')}", ""),
    "lot size": ("plan", "{'lot_size': 40}", ""),
    "clip norm": ("plan", "{'clipping': tacit.Flat(2.0)}", ""),
    "budget": ("plan", "{'budget': tacit.Budget(1.0, 1e-5)}", ""),
    "seed": ("plan", "{'seed': 3}", ""),
}


@pytest.mark.parametrize(
    "case",
    [case if "order" in case or "noise" in case else pytest.param(case, marks=pytest.mark.slow) for case in DISAGREE],
)
def test_processes_that_disagree_are_all_told(processes: Run, case: str) -> None:
    """In another order one person would be counted by several processes; with other settings noise would be missing."""
    what, changed, before = DISAGREE[case]
    code = ODD.format(what=what, changed=changed, before=before)
    assert [int(each["refused"]) for each in processes(code, 2)] == [1, 1]


OWN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = tacit.make_private(
    model, optimizer, torch.ones(11, 5, dtype=torch.float64), lot_size=11, batch_size=5, steps=1,
    clipping=tacit.Flat(1.0), noise_multiplier=100.0, parallel=parallel,
)
for bx in run.batches():
    model(bx).sum().backward()
    mine = torch.zeros(model[0].weight.numel() + 26, dtype=torch.float64)
    handle = dist.all_reduce(mine, async_op=True)  # as often as there are batches: otherwise often in each process
    optimizer.step()
save(spread=torch.cat([p.grad.flatten() for p in model.parameters()]).std() * 11)
os._exit(0)
"""


def test_a_collective_of_the_caller_is_never_taken_for_a_release(processes: Run) -> None:
    """Batches differ in number, so the caller's own sums may pair with anything: but not with ours."""
    for each in processes(OWN, 2):
        assert float(each["spread"]) > 50.0


BUFFERS = """
model.register_buffer("projection", torch.randn(3, dtype=torch.float64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = tacit.make_private(
    model, optimizer, data, lot_size=20, steps=3, clipping=tacit.Flat(1.0), noise_multiplier=1.0, parallel=parallel,
)
for bx, by in run.batches():
    F.cross_entropy(model(bx), by).backward()
    optimizer.step()
    if run.step == 2 and rank == drifts:
        with torch.no_grad():
            model[0].weight[0, 0] += 1e-3  # somebody's own idea, in one process only
    optimizer.zero_grad()
save(buffer=model.projection, weights=model[0].weight.detach(), steps=torch.tensor(run.step))
"""


def test_models_begin_alike_buffers_and_all(processes: Run) -> None:
    first, second = processes(BUFFERS, 2, drifts=-1)
    assert torch.equal(first["buffer"], second["buffer"]) and torch.equal(first["weights"], second["weights"])


def test_models_that_drift_apart_are_found_out(processes: Run, tmp_path: Path) -> None:
    first, second = processes(BUFFERS, 2, codes=[1, 1], drifts=1)
    assert not first and not second
    assert "not those of the first process" in (tmp_path / "told-1").read_text()


STOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = tacit.make_private(
    model, optimizer, data, lot_size=20, steps=6, clipping=tacit.Flat(1.0), noise_multiplier=1.0, parallel=parallel,
)
for bx, by in run.batches():
    F.cross_entropy(model(bx), by).backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 1 and run.step == 3:
        break
run.save(out / "point")
"""


def test_a_process_that_stops_on_its_own_does_not_take_a_step_for_a_checkpoint(processes: Run, tmp_path: Path) -> None:
    processes(STOP, 2, codes=[1, 1])
    assert "waits for a done, the first one is at a step" in (tmp_path / "told-1").read_text()
    assert not (tmp_path / "point").exists()


def test_a_ledger_object_is_refused_for_its_path(processes: Run) -> None:
    code = ODD.format(what="", changed="{}", before="settings |= {'ledger': tacit.Ledger()}")
    code = code.replace('"process 1 has another "', '"give its path"')
    assert [int(each["refused"]) for each in processes(code, 2)] == [1, 1]


WRAPPED = TRAIN.format(clipping="Flat(1.0)", more="").replace(
    "\noptimizer = ",
    """
inner = model
if world > 1:
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
optimizer = """,
    1,
)


def test_a_wrapped_model_trains_like_its_inner_one(processes: Run) -> None:
    """`DistributedDataParallel` puts nothing together itself: the sums are those of one process."""
    code = (
        WRAPPED
        + """
run.close()
if world > 1:
    assert model.require_backward_grad_sync and run.model is inner
"""
    )
    (alone,) = processes(code, 1)
    first, second = processes(code, 2)
    assert torch.equal(first["weights"], second["weights"])
    assert torch.allclose(first["weights"], alone["weights"], rtol=1e-6, atol=1e-6)


REFUSED = """
wrapped = nn.parallel.DistributedDataParallel
cases = {
    "find_unused_parameters": wrapped(nn.Linear(5, 2).double(), find_unused_parameters=True),
    "inner model": nn.Sequential(wrapped(nn.Linear(5, 2).double())),
}
for said, each in cases.items():
    try:
        tacit.make_private(
            each, torch.optim.SGD(each.parameters(), lr=0.1), data, lot_size=20, steps=5, clipping=tacit.Flat(1.0),
            noise_multiplier=1.0, parallel=parallel,
        )
    except ValueError as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
save(done=torch.tensor(1))
"""


def test_other_wrappers_are_refused_with_the_reason(processes: Run) -> None:
    assert [int(each["done"]) for each in processes(REFUSED, 2)] == [1, 1]
