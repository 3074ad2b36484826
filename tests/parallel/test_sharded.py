"""A model cut into shards (`fully_shard`): trained privately by two processes as by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Run = Callable[..., list[dict[str, Any]]]

MODELS = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        wide = 2 * width
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)

class Words(nn.Module):
    def __init__(self, words=11, width=6, length=5):
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Parameter(0.1 * torch.randn(1, length, width))
        self.blocks = nn.Sequential(Block(width))
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(self.blocks(self.table(x) + self.places))

class Layers(nn.Module):
    # Uses of parameters whose values are needed, or look as if, when they are no longer gathered.
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4)
        self.scaled = nn.utils.parametrizations.weight_norm(nn.Linear(16, 5))
        self.centres, self.memory = nn.Parameter(torch.randn(3, 5)), nn.LSTM(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        x = self.norm(self.convolution(x[:, None, :3, None] * x[:, None, None, :3])).relu()
        x = torch.cdist(self.scaled(x.flatten(1)), self.centres)
        return self.out(self.memory(x[:, None])[0][:, 0].clone())

torch.manual_seed(11)
if kind == "words":
    model, parts = Words().double(), ("blocks.0.mlp", "blocks.0")
    data = torch.utils.data.TensorDataset(torch.randint(0, 11, (200, 5)), torch.randint(0, 11, (200, 5)))
elif kind == "layers":
    model, parts = Layers().double(), ("convolution", "scaled", "memory")
else:
    model, parts = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double(), ("0", "2")

def cut(model):
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        for part in parts:
            fully_shard(model.get_submodule(part), mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model

def losses(model, x, y):
    each = F.cross_entropy(model(x).flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
    return each.mean(1) if y.ndim > 1 else each

def whole(tensor):
    return tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
def all_of_it(model):
    return torch.cat([whole(p).flatten() for p in model.parameters()])
"""

TRAIN = (
    MODELS
    + """
tacit.randomness.Source.normal_ = lambda self, tensor, std=1.0: tensor.zero_()  # noise has tests of its own
tacit.randomness.Source.add_normals_ = lambda self, sums: [t.div_(g).round_().mul_(g) for t, _, g in sums]
tacit.mechanisms.lattice.draw = lambda std, size, source: torch.zeros(size, dtype=torch.int64).numpy()
cut(model)
optimizer = {optimizer}
run = tacit.make_private(
    model, optimizer, data, lot_size=20, batch_size=7, steps=20, clipping=tacit.{clipping}, noise_multiplier=1.0,
    metrics={{"loss": tacit.Metric(bound=3.0)}}, ledger=out / f"ledger-{{world}}.jsonl", seed=3, parallel=parallel,
    {more}
)
for bx, by in run.batches():
    loss = losses(model, bx, by)
    run.observe(loss=loss.detach().view(-1, run.settings.microbatch_size).mean(1))
    loss.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
save(weights=all_of_it(model), loss=torch.tensor(run.metrics["loss"]),
     steps=torch.tensor(len(run.ledger)))
"""
)

SGD, ADAM = "torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)", "torch.optim.Adam(model.parameters(), lr=0.05)"
KINDS = {
    "flat": ("mlp", "Flat(0.1)", SGD, ""),
    "transformer": ("words", "Flat(0.1)", ADAM, ""),
    "per layer": ("layers", "PerLayer(total=0.1)", ADAM, ""),
    "transformer per layer": ("words", "PerLayer(each=0.05)", SGD, ""),
    "adaptive": ("mlp", "Adaptive(initial=1.0)", SGD, ""),
    "corrected Adam": ("mlp", "Flat(0.1)", "tacit.training.AdamBC(model.parameters(), lr=0.05)", ""),
    "discrete": ("mlp", "Flat(0.1)", SGD, 'noise="discrete"'),
    "fixed size": ("mlp", "Flat(0.1)", SGD, 'sampling="fixed-size"'),
    "microbatches": ("mlp", "Flat(0.1)", SGD, "microbatch_size=2"),
    "users": ("mlp", "Flat(0.1)", SGD, "users=[i // 4 for i in range(200)], examples_per_user=2"),
}
FAST = ("transformer", "per layer")


@pytest.mark.parametrize(
    "kind", [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_twenty_steps_on_shards_are_those_of_one_process(processes: Run, kind: str) -> None:
    """Lots of one to four batches in a process, and not the same number in both; parts sharded within the whole."""
    model, clipping, optimizer, more = KINDS[kind]
    code = TRAIN.format(clipping=clipping, optimizer=optimizer, more=more)
    (alone,) = processes(code, 1, kind=model)
    first, second = processes(code, 2, kind=model)
    for name in alone:
        assert torch.allclose(first[name], alone[name], rtol=1e-6, atol=1e-6), name
        assert torch.equal(first[name], second[name]), name


@pytest.mark.slow
def test_a_process_may_hold_nothing_of_a_small_parameter(processes: Run) -> None:
    """Two rows for three processes."""
    code = TRAIN.format(clipping="Flat(0.1)", optimizer=ADAM, more="")
    (alone,) = processes(code, 1, kind="mlp")
    for each in processes(code, 3, kind="mlp"):
        assert torch.allclose(each["weights"], alone["weights"], rtol=1e-6, atol=1e-6)


NOISE = """
model = fully_shard(nn.Linear(1000, 51), mesh=init_device_mesh("cpu", (world,)))
run = tacit.make_private(
    model, torch.optim.SGD(model.parameters(), lr=1.0), torch.utils.data.TensorDataset(torch.zeros(40, 1000)),
    lot_size=4, steps=4, clipping=tacit.Flat(1.0), noise_multiplier=2.0, parallel=parallel, seed=seed,
)
drawn = []
for (bx,) in run.batches():
    (0.0 * model(bx)).sum().backward()  # nothing but noise
    run.optimizer.step()
    drawn.append(model.weight.grad.to_local().flatten().clone() * 4.0)
    run.optimizer.zero_grad()
own = [torch.zeros(2000), torch.zeros(2000)]
run._source.normal_(own[0]), run._sums.source.normal_(own[1])
save(drawn=torch.stack(drawn), own=torch.stack(own), std=torch.tensor(run.ledger.entries[0][0].queries[0].noise_std))
"""


@pytest.mark.parametrize("seed", [None, pytest.param(5, marks=pytest.mark.slow)])
def test_every_coordinate_has_the_recorded_noise_once_from_a_key_of_its_shard(processes: Run, seed: int | None) -> None:
    first, second = processes(NOISE, 2, seed=seed)
    shards = [each["drawn"].double() for each in (first, second)]
    assert [tuple(each.shape) for each in shards] == [(4, 26_000), (4, 25_000)]
    recorded = float(first["std"])
    assert recorded == pytest.approx(2.0, rel=0.02)
    for drawn in shards:
        count = drawn.numel()
        # The sample variance of normal values has deviation σ² sqrt(2 / n), the mean σ / sqrt(n); 6.2 of them: 1e-9.
        assert abs(float(drawn.var()) / recorded**2 - 1) < 6.2 * (2 / count) ** 0.5
        assert abs(float(drawn.mean())) < 6.2 * 2.0 / count**0.5
    rows = torch.cat([each[:, :25_000] for each in shards])  # the same places of both shards, in all four steps
    assert float(torch.corrcoef(rows).fill_diagonal_(0.0).abs().max()) < 6.5 / 25_000**0.5
    keys = torch.corrcoef(torch.cat([first["own"], second["own"]]).double()).fill_diagonal_(0.0)
    assert float(keys.abs().max()) < 6.2 / 2000**0.5  # of the lots and of the shards, in both processes: four keys


ALIKE = """
model, parts = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double(), ("0", "2")
mesh = init_device_mesh("cpu", (world,))
fully_shard(model[0], mesh=mesh), fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = tacit.make_private(
    model, optimizer, data, lot_size=lot, batch_size=2, steps=60, clipping=tacit.Flat(1.0), noise_multiplier=1.0,
    ledger=out / "ledger.jsonl", parallel=parallel,
)
"""

SHARES = (
    ALIKE
    + """
sizes = []
for bx, by in run.batches():
    sizes.append([run.step, len(bx)])
    F.cross_entropy(model(bx), by, reduction="sum").backward()
    assert all(p.grad is None for p in model.parameters())
    optimizer.step()
    optimizer.zero_grad()
    if run.step == 10:
        with torch.no_grad():
            model(x[:3])  # leaves some parameters whole
save(sizes=torch.tensor(sizes), weights=model[2].weight.full_tensor())
"""
)


@pytest.mark.parametrize("lot", [1, 8])
def test_processes_take_as_many_batches_each_though_their_shares_differ(processes: Run, lot: int) -> None:
    """Every batch gathers parameters: a process with fewer of them, or none, would leave the other waiting."""
    first, second = processes(SHARES, 2, lot=lot)
    assert torch.equal(first["sizes"][:, 0], second["sizes"][:, 0])
    assert torch.equal(first["weights"], second["weights"])
    shares = [torch.zeros(60).index_add_(0, e["sizes"][:, 0], e["sizes"][:, 1].float()) for e in (first, second)]
    assert any(not torch.equal((a + 1) // 2, (b + 1) // 2) for a, b in zip(*shares))
    if lot == 1:
        assert float((shares[0] == 0).sum()) > 0 and float((shares[1] == 0).sum()) > 0


RAW = (
    ALIKE
    + """
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
reduced = []
whole_reduce = _fsdp_param_group.foreach_reduce
_fsdp_param_group.foreach_reduce = lambda *args, **kwargs: reduced.append(1) or whole_reduce(*args, **kwargs)
for bx, by in run.batches():
    loss = F.cross_entropy(model(bx), by, reduction="sum")
    if run.step < 2:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        continue
    try:
        if inside:  # a penalty that a module computes with its gathered parameters
            seen = []
            model[0].register_forward_pre_hook(lambda module, *_: seen.append(module.weight.square().sum()))
            loss = F.cross_entropy(model(bx), by, reduction="sum") + seen[0]
        else:
            loss = model[0].weight.square().sum()
        loss.backward()
    except RuntimeError as error:
        print("refused:", error)
    model[0].unshard()
    assert all(p.grad is None for p in model.parameters())
    model[0].reshard()
    assert all(p.grad is None for p in model.parameters())
    break
save(reduced=torch.tensor(len(reduced)), steps=torch.tensor(run.step))
"""
)


@pytest.mark.parametrize("inside", [True, False])
def test_no_raw_gradient_is_put_together_or_left_behind(processes: Run, tmp_path: Path, inside: bool) -> None:
    for each in processes(RAW, 2, lot=40, inside=inside):  # so that nobody's share is empty: no layer would run
        assert int(each["reduced"]) == 0 and int(each["steps"]) == 2
    for rank in range(2):
        assert "refused: parameter '0.weight' received a gradient" in (tmp_path / f"told-{rank}").read_text()


WRITES = (
    ALIKE
    + """
right = model[0].weight.to_local().clone()
for bx, by in run.batches():
    F.cross_entropy(model(bx), by, reduction="sum").backward()
    with torch.no_grad():
        model[0].weight.to_local()[0, 0] += 1e-3
        if rank == 1:
            model[0].weight._local_tensor = torch.full_like(right, float(bx.mean()))
    try:
        optimizer.step()
    except RuntimeError as error:
        assert "'0.weight' changed between the batch and optimizer.step() and was restored" in str(error)
        break
assert model[0].weight.to_local().isnan().all() and model[0].weight.full_tensor().shape == (7, 5)
save(done=torch.tensor(1))
"""
)


def test_a_shard_that_other_code_writes_to_is_refused_and_leaves_nothing(processes: Run) -> None:
    assert [int(each["done"]) for each in processes(WRITES, 2, lot=8)] == [1, 1]


WRITES_WHOLE = (
    MODELS
    + """
tacit.randomness.Source.normal_ = lambda self, tensor, std=1.0: tensor.zero_()
tacit.randomness.Source.add_normals_ = lambda self, sums: [t.div_(g).round_().mul_(g) for t, _, g in sums]
parts = ("0",)  # those of the last layer belong to the model itself and stay whole after a forward pass
cut(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
# Hardly clipped: with two classes a bias changes a record's gradient in length only.
run = tacit.make_private(model, optimizer, data, lot_size=20, steps=3, clipping=tacit.Flat(10.0), noise_multiplier=1.0,
                         seed=3, parallel=parallel)
for bx, by in run.batches():
    if write == "before":
        model.unshard()
        with torch.no_grad():
            model[2].bias[0] += float(bx.mean())
    loss = F.cross_entropy(model(bx), by, reduction="sum")
    if write == "between":
        model[2].weight.data[0] += float(bx.mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
save(weights=all_of_it(model))
"""
)


def test_writes_to_gathered_parameters_do_not_change_the_trained_weights(processes: Run) -> None:
    """It would carry one record into every other one's gradient, and be gone before anybody could see it."""
    right, *others = (processes(WRITES_WHOLE, 2, kind="mlp", write=write) for write in ("", "before", "between"))
    for other in others:
        assert torch.equal(other[0]["weights"], right[0]["weights"])


DYING = (
    ALIKE
    + """
import signal
taken = 0
try:
    for bx, by in run.batches():
        hidden = model(bx)
        if run.step == 5 and rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        F.cross_entropy(hidden, by, reduction="sum").backward()
        optimizer.step()
        optimizer.zero_grad()
        taken = run.step
except RuntimeError as error:
    save(taken=torch.tensor(taken))
    os._exit(3)
"""
)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_when_one_process_dies_the_step_ends_for_the_other_and_stays_charged(
    processes: Run, tmp_path: Path, victim: int
) -> None:
    from tacit import Ledger

    results = processes(DYING, 2, codes=[-9, 3] if victim == 0 else [3, -9], victim=victim, lot=8)
    assert int(results[1 - victim]["taken"]) == 5
    assert len(Ledger.load(tmp_path / "ledger.jsonl")) == 6


RESUME = (
    MODELS
    + """
tacit.randomness.Source.normal_ = lambda self, tensor, std=1.0: tensor.zero_()
tacit.randomness.Source.add_normals_ = lambda self, sums: [t.div_(g).round_().mul_(g) for t, _, g in sums]
if shard:
    cut(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
class Average:
    def __init__(self):
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}
    def update(self):
        for name, p in model.named_parameters():
            self.values[name].lerp_(p.detach(), 0.5)
    def state_dict(self):
        return {"values": self.values}
    def load_state_dict(self, state):
        for name, value in state["values"].items():
            self.values[name].copy_(value)
average = Average()
book = out / f"ledger-{copy}.jsonl"
if begin is not None and rank == 0:
    book.write_bytes((out / f"ledger-{begin}.jsonl").read_bytes())
run = tacit.make_private(
    model, optimizer, data, lot_size=20, batch_size=7, steps=8, clipping=tacit.Flat(0.1), noise_multiplier=1.0, seed=9,
    ledger=book, parallel=parallel,
)
if begin is not None:
    run.load(out / f"point-{begin}", scheduler=scheduler, average=average)
began = seen = run.step
loaded = all_of_it(model)
for bx, by in run.batches():
    losses(model, bx, by).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if run.step > seen:
        seen = run.step
        scheduler.step(), average.update()
    if run.step == began + 4:
        break
run.save(out / f"point-{copy}", scheduler=scheduler, average=average)
save(began=torch.tensor(began), loaded=loaded, weights=all_of_it(model), rate=torch.tensor(scheduler.get_last_lr()[0]),
     average=torch.cat([whole(value).flatten() for value in average.values.values()]))
"""
)


def test_a_sharded_run_goes_on_in_one_process_and_the_other_way_round(processes: Run) -> None:
    first, second = processes(RESUME, 2, kind="words", shard=True, begin=None, copy="a")
    assert torch.equal(first["weights"], second["weights"])
    (alone,) = processes(RESUME, 1, kind="words", shard=False, begin="a", copy="b")
    shards, _ = processes(RESUME, 2, kind="words", shard=True, begin="a", copy="c")
    assert torch.equal(alone["loaded"], first["weights"]) and torch.equal(shards["loaded"], first["weights"])
    assert int(alone["began"]) == int(shards["began"]) == 4
    for name in ("weights", "average", "rate"):  # the same lots, and the same state of the optimizer
        assert torch.allclose(alone[name], shards[name], rtol=1e-6, atol=1e-6), name
    assert not torch.allclose(alone["weights"], first["weights"], rtol=1e-3)


REFUSED = """
mesh = init_device_mesh("cpu", (world,))
def make():
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)).double()
part = make()
fully_shard(part[0], mesh=mesh)
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
rows = parallelize_module(make(), mesh, {"0": ColwiseParallel(), "1": ColwiseParallel()})
columns, names = (lambda p: Shard(p.ndim - 1)), ("replicate", "shard")
twice = init_device_mesh("cpu", (1, world), mesh_dim_names=names)
cases = {
    "call fully_shard on the model itself too": (part, parallel),
    "use tacit.Parallel()": (fully_shard(make(), mesh=mesh), tacit.Parallel(noise="split")),
    "give make_private parallel=tacit.Parallel()": (fully_shard(make(), mesh=mesh), None),
    "shards rows (dimension 0)": (fully_shard(make(), mesh=mesh, shard_placement_fn=columns), parallel),
    "a mesh of one dimension": (fully_shard(make(), mesh=twice), parallel),
    "tensor parallelism is not supported": (rows, parallel),
}
for said, (model, how) in cases.items():
    try:
        tacit.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(20, 6, dtype=torch.float64), lot_size=5,
            steps=5, clipping=tacit.Flat(1.0), noise_multiplier=1.0, parallel=how,
        )
    except ValueError as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
save(done=torch.tensor(1))
"""


def test_other_ways_to_shard_are_refused_with_the_remedy(processes: Run) -> None:
    assert [int(each["done"]) for each in processes(REFUSED, 2)] == [1, 1]


HALF = """
from torch.distributed.fsdp import MixedPrecisionPolicy
from tacit import gradients
import copy
class Clip:
    def partition(self, shapes):
        return [tuple(shapes)]
    def weights(self, norms):
        return (0.1 / norms).clamp(max=1.0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 2)))
plain = copy.deepcopy(model).bfloat16()
mesh, policy = init_device_mesh("cpu", (world,)), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
for part in (model[0], model[3], model):
    fully_shard(part, mesh=mesh, mp_policy=policy)
torch.manual_seed(rank)
rows, found = torch.randn(6, 5), []
for each, given in ((plain, rows.bfloat16()), (model, rows)):
    with gradients.record(each) as tape:
        each(given).float().square().sum().backward()
    total = tape.clipped_sum(Clip())
    found.append(torch.cat([value.flatten() for value in total.values()]))
save(plain=found[0], sharded=found[1])
"""


def test_in_half_precision_sums_are_those_of_a_model_in_half_precision(processes: Run) -> None:
    for each in processes(HALF, 2):
        assert each["sharded"].dtype == torch.float32 and float(each["sharded"].norm()) > 0.1
        assert torch.equal(each["sharded"], each["plain"])
