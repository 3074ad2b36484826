"""Bugs that happened elsewhere, one test each, by their number in the field notes.

Of number 5 (data parallel) and of number 22 (trees of correlated noise) there are only the refusals.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import tacit
from tacit.accounting import Unproved
from tacit.gradients.precision import MARGIN
from tacit.ledger import Everyone, GaussianSum, Header, Poisson, Shuffled, Step, from_json
from tacit.mechanisms import Microbatches, SparseVectorQuery, lattice, noise, sparse_vector
from tacit.randomness import SecureSource
from tacit.training import PrivateRun


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, float]]:
    """No noise; the sums and the noise they would have got."""
    seen: list[tuple[Tensor, float]] = []

    def note(pairs: Any, source: Any) -> None:
        seen.extend((total.clone(), std) for total, std in pairs)

    monkeypatch.setattr(lattice, "add_gaussian_", note)
    return seen


X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 3


def start(model: nn.Module | None = None, dataset: Any = None, **settings: Any) -> PrivateRun:
    model = nn.Linear(4, 3) if model is None else model
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    chosen = {"lot_size": 10, "clipping": tacit.Flat(1.0), "steps": 3, **settings}
    if not {"noise_multiplier", "budget"} & set(chosen):
        chosen["noise_multiplier"] = 1.0
    return tacit.make_private(model, optimizer, TensorDataset(X, Y) if dataset is None else dataset, **chosen)


def train(run: PrivateRun, loss: Callable[..., Tensor] = F.cross_entropy) -> PrivateRun:
    for x, y in run.batches():
        loss(run.model(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    return run


def naive(model: nn.Module, x: Tensor, y: Tensor, bound: float, loss: Any = F.cross_entropy) -> dict[str, Tensor]:
    """The clipped sum, one example at a time."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    totals = {name: torch.zeros_like(p) for name, p in named.items()}
    for i in range(len(x)):
        gradients = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]), list(named.values()))
        norm = float(torch.cat([g.flatten() for g in gradients]).norm())
        for name, g in zip(named, gradients, strict=True):
            totals[name] += g * min(1.0, bound / norm)
    return totals


# -- 1. The sum was divided by the realised lot size, or by a number that depends on the data: dividing tells how many
#       records were there, and scales everybody's contribution by the presence of one.
def test_01_the_divisor_is_public(silence: list[tuple[Tensor, float]]) -> None:
    run = start(lot_size=10, steps=6, batch_size=100, trial=False)
    sizes = set()
    for x, y in run.batches():
        silence.clear()
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        sizes.add(len(x))
        torch.testing.assert_close(run.model.weight.grad, silence[0][0] / 10)
    assert len(sizes) > 1


# -- 2. The sampling rate was taken from 1/len(loader) and the steps from int(1/q): rounding lost steps, and loaders
#       with weighted samplers were replaced silently, which made q wrong by orders of magnitude.
def test_02_rates_and_steps_are_not_rounded() -> None:
    odd = TensorDataset(torch.randn(1003, 4), torch.zeros(1003, dtype=torch.long))
    run = start(dataset=odd, lot_size=100, epochs=3, steps=None)
    assert run.settings.steps == math.ceil(3 * 1003 / 100) == 31  # not 3 * int(10.03)
    event = run.sampler.event()
    assert event.rate == 100 / 1003 and event.records == 1003
    assert run.sampler.expected == pytest.approx(100)
    loader = DataLoader(odd, batch_size=10, sampler=WeightedRandomSampler([1.0] * 1003, 50))
    with pytest.raises((ValueError, TypeError)):
        train(start(dataset=loader, lot_size=5))


# -- 3. The ε of Poisson sampling was reported for shuffled or fixed-size batches, which leak several times more.
def test_03_the_guarantee_is_about_the_sampling_that_was_done() -> None:
    spent = {}
    for sampling in ("poisson", "shuffled"):
        run = train(start(sampling=sampling, lot_size=4, steps=10, noise_multiplier=2.0))
        spent[sampling] = run.guarantee(1e-5).epsilon
        names = {type(step.sampling) for step, _ in run.ledger.entries}
        assert names == {Poisson if sampling == "poisson" else Shuffled}
    assert spent["shuffled"] > 2 * spent["poisson"]
    # A lot that was recorded as Poisson cannot be drawn by another sampler.
    shuffled = start(sampling="shuffled")
    receipt = tacit.Ledger().record(Step(Poisson(rate=0.1, records=40), ()))
    with pytest.raises(ValueError, match="would draw"):
        shuffled.sampler.draw(receipt)


# -- 4. optimizer.step(closure) called the closure after the noise was added: raw gradients took its place.
def test_04_a_closure_does_not_erase_the_noise(silence: list[tuple[Tensor, float]], monkeypatch: Any) -> None:
    monkeypatch.setattr(lattice, "add_gaussian_", lambda pairs, source: [total.add_(1000.0) for total, _ in pairs])
    run = start(lot_size=40, steps=1)
    before = run.model.weight.detach().clone()
    calls = []
    for x, y in run.batches():

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            calls.append(run.in_trial)
            run.optimizer.zero_grad()
            loss = F.cross_entropy(run.model(x), y)
            loss.backward()
            return loss

        run.optimizer.step(closure)
    assert calls.count(False) == 1
    moved = before - run.model.weight.detach()
    assert (moved > 1.4).all()  # 0.1 · (1000 ± 40) / 40


# -- 6. Ghost clipping: the clip norm was ignored; the norm of biases was wrong for inputs with a sequence dimension;
#       ignore_index with a mean was wrong; accumulated batches shared memory; padding counted.
@pytest.mark.parametrize("bound", [0.05, 0.5, 1e6])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_06_the_fast_way_equals_one_example_at_a_time(
    silence: list[tuple[Tensor, float]], bound: float, reduction: str
) -> None:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.inner, self.out = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 5), nn.Linear(5, 9)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.inner(self.table(x)))).transpose(1, 2)

    x = torch.randint(0, 9, (20, 6))
    y = torch.where(torch.rand(20, 6) < 0.3, -100, torch.randint(0, 9, (20, 6)))

    def whole(out: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(out, target, reduction="none", ignore_index=-100).sum(dim=1)
        return each.mean() if reduction == "mean" else each.sum()

    model = Sequence()
    wanted = naive(model, x, y, bound, lambda out, t: F.cross_entropy(out, t, reduction="sum", ignore_index=-100))
    run = start(model, TensorDataset(x, y), lot_size=20, batch_size=7, steps=1, clipping=tacit.Flat(bound))
    if reduction == "none":
        for a, b in run.batches():
            each = F.cross_entropy(model(a), b, reduction="none", ignore_index=-100).sum(dim=1)
            each.backward(torch.ones(len(a)))
            run.optimizer.step()
    else:
        train(run, whole)
    for name, (total, _) in zip(run.engine.shapes, silence, strict=True):
        torch.testing.assert_close(total, wanted[name], atol=1e-4, rtol=1e-3)


def test_06_a_mean_over_targets_that_count_is_each_examples_own(silence: list[tuple[Tensor, float]]) -> None:
    """It would divide everybody's loss by how many targets the others have; an ignored target counts as zero."""
    targets = Y.clone()
    targets[::3] = -100
    run = start(dataset=TensorDataset(X, targets), lot_size=40, trial=False)
    engine = run.engine
    seen: list[tuple[Tensor, Tensor]] = []
    norms: list[Tensor] = []
    for x, y in run.batches():
        F.cross_entropy(run.model(x), y).backward()
        seen.append((x.detach().as_subclass(Tensor), y.detach().as_subclass(Tensor)))
        norms.append(engine.norms())
        break
    (x, y), found = seen[0], norms[0]
    twin = copy.deepcopy(run.model)
    for i in range(len(x)):
        if y[i] == -100:
            assert float(found[i]) < 1e-6
            continue
        grads = torch.autograd.grad(F.cross_entropy(twin(x[i : i + 1]), y[i : i + 1]), list(twin.parameters()))
        wanted = float(torch.sqrt(sum((g.square().sum() for g in grads), torch.zeros(()))))
        assert float(found[i]) == pytest.approx(wanted, rel=1e-4)


# -- 7. Adaptive clipping: the quantile query was not charged, the accountant was told another σ than was used, the
#       noise of the gradients came out complex, and the fraction was divided by the realised lot size.
def test_07_adaptive_clipping_is_charged(silence: list[tuple[Tensor, float]]) -> None:
    run = train(
        start(lot_size=20, steps=4, clipping=tacit.Adaptive(initial=0.7, count_noise_std=4.0), noise_multiplier=1.5)
    )
    for number, (step, _) in enumerate(run.ledger.entries):
        gradient, count = step.queries
        assert (count.clip_norm, count.noise_std) == (0.5, 4.0)
        assert gradient.noise_std > 1.5 * gradient.clip_norm
        assert step.noise_multiplier == pytest.approx(1.5)
        (_, weight), (_, bias), (tally, counted) = silence[3 * number : 3 * number + 3]
        assert weight == bias == gradient.noise_std and counted == 4.0
        assert float(tally) * 2 == int(float(tally) * 2)
    assert len(run.ledger.entries) == 4  # the clip norm moved, so every step is another one
    with pytest.raises(ValueError, match="give them more noise"):  # where elsewhere a square root of less than zero
        start(clipping=tacit.Adaptive(count_noise_std=0.4), noise_multiplier=1.0)


def test_07_the_fraction_has_a_public_divisor(silence: list[tuple[Tensor, float]]) -> None:
    clipping = tacit.Adaptive(initial=1e6, learning_rate=1.0, count_noise_std=9.0)
    run = start(lot_size=10, steps=5, clipping=clipping, trial=False)
    norm = 1e6
    for x, y in run.batches():
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        norm *= math.exp(-(0.5 + 0.5 * len(x) / 10 - 0.5))  # all are below: + 1/2 for each of the lot
        assert run.clipping_state()["clip_norms"]["gradients"] == pytest.approx(norm)


# -- 8. Calibration overshot the target, crashed for small or large ones, and reading ε changed the accountant.
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_08_calibration_never_overshoots_and_reading_changes_nothing(epsilon: float) -> None:
    run = train(start(budget=tacit.Budget(epsilon, 1e-5), steps=5, lot_size=4))
    assert run.step == 5
    digest = run.ledger.digest
    first = run.guarantee()
    assert 0.995 * epsilon <= first.epsilon <= epsilon
    assert [run.guarantee().epsilon for _ in range(3)] == [first.epsilon] * 3
    assert run.ledger.digest == digest


# -- 9. A lot with nobody in it crashed the run, or was skipped: then not being charged tells that nobody was there.
def test_09_an_empty_lot_releases_noise_and_takes_a_step() -> None:
    run = start(lot_size=1, steps=30)
    empty = 0
    for x, y in run.batches():
        before = run.model.weight.detach().clone()
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        if not len(x):
            empty += 1
            assert not torch.equal(before, run.model.weight)
    assert empty > 0 and run.step == len(run.ledger) == 30


# -- 10. A "secure mode" summed several floating-point Gaussians: the range still had holes that tell the true value.
#        Here noisy values are rounded to a public grid, coarse beside the spacing of the numbers, whatever the sum.
@pytest.mark.parametrize("value", [0.0, 1 / 3, -123.456])
def test_10_released_values_lie_on_a_public_grid(value: float) -> None:
    total = torch.full((2000,), value)
    noise.add_gaussian_([(total, 3.0)], SecureSource())
    grid = 2.0 ** (math.floor(math.log2(3.0)) - 14)
    assert torch.equal(total, (total / grid).round() * grid)
    assert len(total.unique()) > 1000


# -- 11. Noise for the sum was added to the mean, or the reverse: a factor of the lot size too much or too little.
def test_11_noise_of_the_sum_is_on_the_sum() -> None:
    dataset = TensorDataset(torch.zeros(40, 40), torch.zeros(40))
    run = start(nn.Linear(40, 25), dataset, lot_size=20, noise_multiplier=2.0, trial=False)
    released = []
    for x, _ in run.batches():
        (0 * run.model(x)).sum().backward()
        run.optimizer.step()
        released.append(run.model.weight.grad.clone())
    assert run.ledger.entries[0][0].queries[0].noise_std == 2.0 * (1 + MARGIN)
    assert float(torch.stack(released).std()) == pytest.approx(2.0 / 20, rel=0.1)  # 3000 values: 7 deviations


# -- 12. The average over a microbatch was charged as C; one example more or fewer moves it by up to 2 C.
def test_12_microbatches_are_charged_twice() -> None:
    run = train(start(clipping=Microbatches(tacit.Flat(0.5)), noise_multiplier=1.0))
    query = run.ledger.entries[0][0].queries[0]
    assert (query.clip_norm, query.noise_std) == (1.0 + MARGIN, 1.0 + MARGIN)
    # The worst case: an example turns the clipped average of its microbatch around.
    big, small = torch.tensor([-300.0, 0.0]), torch.tensor([1.0, 0.0])

    def clipped(rows: Tensor) -> Tensor:
        mean = rows.mean(dim=0)
        return mean * min(1.0, 0.5 / float(mean.norm()))

    moved = clipped(torch.stack([small, big])) - clipped(small[None])
    assert 0.5 < float(moved.norm()) <= query.clip_norm


# -- 13. Norm layers were wrong with extra axes; layers the library did not know stayed untrained without a word;
#        LoRA adapters trained while the frozen weights were changed.
class Odd(nn.Module):
    """A layer nobody has a rule for, norms with extra axes, and an adapter beside a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.group = nn.LayerNorm(4), nn.GroupNorm(2, 6)
        self.angle = nn.Parameter(torch.randn(4))
        self.base = nn.Linear(4, 3).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:  # [batch, 5, 6, 4]
        h = self.layer(x) * torch.cos(self.angle) + torch.sin(x * self.angle)
        h = self.group(h.transpose(1, 2)).mean(dim=(1, 2))
        return self.base(h) + h @ self.down.t() @ self.up.t()


def test_13_norm_layers_unknown_layers_and_adapters(silence: list[tuple[Tensor, float]]) -> None:
    x, y = torch.randn(12, 5, 6, 4), torch.arange(12) % 3
    model = Odd()
    frozen = copy.deepcopy(model.base.state_dict())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    wanted = naive(model, x, y, 0.3)
    run = train(start(model, TensorDataset(x, y), lot_size=12, batch_size=5, steps=1, clipping=tacit.Flat(0.3)))
    for name, (total, _) in zip(run.engine.shapes, silence, strict=True):
        torch.testing.assert_close(total, wanted[name], atol=1e-5, rtol=1e-3)
        assert not torch.equal(before[name], dict(model.named_parameters())[name])
    assert all(torch.equal(value, frozen[name]) for name, value in model.base.state_dict().items())


# -- 14. Accumulated batches were counted by the budget and lots by the accountant: 0.72 was reported for 5.6.
def test_14_one_lot_is_one_step_however_it_is_cut() -> None:
    counts = set()
    for size in (1, 4, 40):
        run = train(start(budget=tacit.Budget(2.0, 1e-5), noise_multiplier=2.0, steps=1000, batch_size=size))
        assert run.step == len(run.ledger) == sum(count for _, _, count in run.ledger)
        counts.add((run.step, run.guarantee().epsilon))
    assert len(counts) == 1


# -- 15. The last, smaller batch of a lot used values left over from the first.
@pytest.mark.parametrize("size", [6, 13, 39])
def test_15_the_last_small_batch_counts_itself(silence: list[tuple[Tensor, float]], size: int) -> None:
    model = nn.Linear(4, 3)
    wanted = naive(model, X, Y, 0.4)
    train(start(model, lot_size=40, batch_size=size, steps=1, clipping=tacit.Flat(0.4)))
    torch.testing.assert_close(silence[0][0], wanted["weight"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(silence[1][0], wanted["bias"], atol=1e-5, rtol=1e-4)


# -- 16. One random key served for every parameter; a seeded generator replayed its noise after a resume.
@pytest.mark.parametrize("seed", [None, 5])
def test_16_noise_is_never_used_twice(tmp_path: Path, seed: int | None) -> None:
    ledger = tacit.Ledger(Header(secure_randomness=seed is None))

    def released(resume: bool) -> list[Tensor]:
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        run = start(model, ledger=ledger, seed=seed, steps=2, trial=False)
        if resume:
            run.load(tmp_path / "point")
        else:
            run.save(tmp_path / "point")
        found = []
        for x, _ in run.batches():
            (0 * model(x)).sum().backward()
            run.optimizer.step()
            found += [layer.weight.grad.clone() for layer in model]
        return found

    values = released(resume=False) + released(resume=True) + released(resume=True)
    assert len(values) == 18
    flat = torch.stack([value.flatten() for value in values]).double()
    correlation = torch.corrcoef(flat) - torch.eye(18)
    assert float(correlation.abs().max()) < 0.99
    assert all(not torch.equal(a, b) for i, a in enumerate(values) for b in values[:i])


# -- 17. RDP at an order of 1 + 1e-8 gave ε = 0; the CLT approximation was reported as if it were a bound.
def test_17_no_accountant_promises_nothing_for_something() -> None:
    ledger = tacit.Ledger()
    for _ in range(50):
        ledger.record(Step(Poisson(rate=0.05), (GaussianSum(group="g", clip_norm=1.0, noise_std=0.7),)))
    tight = tacit.account(ledger, delta=1e-5)
    assert tight.epsilon_lower is not None and tight.epsilon_lower > 1
    for name in ("pld", "rdp", "moments"):
        assert tacit.account(ledger, delta=1e-5, accountant=name).epsilon >= tight.epsilon_lower
    with pytest.raises(ValueError, match="accountant is 'gdp'"):
        tacit.account(ledger, delta=1e-5, accountant="gdp")
    assert "estimate" in (tacit.Guarantee.gdp_estimate.__doc__ or "")


# -- 18. The budget was checked after the step that broke it, and the record of spending was wiped at the end.
def test_18_the_budget_is_checked_first_and_the_record_stays(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    run = start(budget=tacit.Budget(1.0, 1e-5), noise_multiplier=2.0, steps=1000, ledger=path)
    train(run)
    spent, weights = run.guarantee().epsilon, run.model.weight.detach().clone()
    assert 0 < spent <= 1.0
    with pytest.raises(tacit.BudgetExceeded):
        next(run.lot())
    assert torch.equal(weights, run.model.weight) and len(run.ledger) == run.step
    run.close()
    run.ledger.close()
    assert tacit.account(tacit.Ledger.load(path), delta=1e-5).epsilon == spent


# -- 19. A NaN or Inf in one example's gradient poisoned the sum: everybody sees that the record was there.
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e38])
def test_19_a_record_that_is_not_finite_counts_as_zero(silence: list[tuple[Tensor, float]], bad: float) -> None:
    x = torch.cat([X, torch.full((1, 4), bad)])
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
    wanted = naive(model, X, Y, 0.4)
    run = start(model, TensorDataset(x, torch.cat([Y, Y[:1]])), lot_size=41, steps=1, clipping=tacit.Flat(0.4))
    train(run)
    moved = 0.0
    for name, (total, _) in zip(run.engine.shapes, silence, strict=True):
        assert torch.isfinite(total).all()
        moved += float((total - wanted[name]).square().sum())
    assert math.sqrt(moved) <= (0.4 if bad == 1e38 else 1e-4)


# -- 20. Norms in half precision let the clipped norm exceed C.
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_20_norms_and_sums_are_not_in_half_precision(silence: list[tuple[Tensor, float]], dtype: torch.dtype) -> None:
    x = torch.full((1, 300), 3.0, dtype=dtype)
    model = nn.Linear(300, 2).to(dtype)
    run = start(
        model, TensorDataset(x, torch.zeros(1, dtype=torch.long)), lot_size=1, steps=1, clipping=tacit.Flat(0.1)
    )
    train(run, lambda out, y: (1000 * out).sum())
    assert all(total.dtype == torch.float32 for total, _ in silence)
    norm = torch.cat([total.flatten() for total, _ in silence]).double().norm()
    assert 0.099 < float(norm) <= 0.1


# -- 21. Sparse vector: values that passed the check but were not chosen were uploaded as they are; positions were drawn
#        with replacement; the noise was added before the value was bounded, and only there; the noise of the threshold
#        was drawn again after every check, or never.
def sparse(values: Tensor, **changes: Any) -> Any:
    query = SparseVectorQuery(
        **{"group": "u", "epsilon": 9.0, "releases": 3, "bound": 1.0, "threshold": 0.5, **changes}
    )
    receipt = tacit.Ledger().record(Step(Everyone(), (query.event(),)))
    return query.release(receipt, values, SecureSource())


def test_21_only_the_chosen_leave_each_once_and_each_with_noise() -> None:
    values = torch.full((1000,), 0.9)
    chosen = sparse(values, releases=200, epsilon=1e6)
    positions = chosen.indices.tolist()
    assert len(positions) == len(set(positions)) == 200  # though all of them would pass
    assert len(chosen.values) == 200 and not bool((chosen.values == values[0].double()).any())


def test_21_values_are_bounded_before_the_noise_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def huge(pairs: Any, source: Any) -> None:
        for total, scale in pairs:
            seen.append((total.clone(), scale))
            total.add_(1e9)

    monkeypatch.setattr(sparse_vector, "add_laplace_", huge)
    chosen = sparse(torch.full((50,), -1e6), epsilon=1e6)
    (before, scale), *others = seen
    assert not others and before.tolist() == [-1.0] * 3  # a record could otherwise move the noisy value without limit
    assert scale == pytest.approx(2 * 3 * 2.0 / (1e6 * 2 / 9))
    assert chosen.values.tolist() == [1.0] * 3


@pytest.mark.parametrize(("high", "released"), [(None, 3), (0, 0), (1, 1), (2, 2)])
def test_21_the_noise_of_the_threshold_changes_with_a_release_and_not_otherwise(
    high: int | None, released: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threshold after ``high`` releases has noise 9. While it has, nothing passes, however many fail."""
    scales: list[float] = []

    def draw(size: int, scale: float, source: Any) -> Any:
        scales.append(scale)
        noise = np.zeros(size)
        if high is not None and scale == min(scales[:2]) and len(scales) > 1:  # of the threshold, not of the compared
            noise[high] = 9.0
        return noise

    monkeypatch.setattr(sparse_vector, "_laplace", draw)
    assert len(sparse(torch.full((5000,), 0.6)).indices) == released
    assert scales[0] == 2 * scales[1]


# -- 22. Restarted in the middle, a mechanism with correlated noise (a tree) lost the noise of the nodes it had not
#        completed. There is no such mechanism here: a ledger that speaks of one is refused by name, never read as if
#        its noise were independent.
def test_22_correlated_noise_is_unknown_and_refused_by_name() -> None:
    tree = {"kind": "tree-sum", "group": "gradients", "clip_norm": 1.0, "noise_std": 1.0, "restarts": 3}
    with pytest.raises(ValueError, match="event kind is 'tree-sum'; this version of tacit knows"):
        from_json(tree)
    with pytest.raises(ValueError, match="event kind is 'tree-sum'"):
        from_json({"kind": "step", "sampling": {"kind": "everyone", "unit": "example"}, "queries": [tree]})
    ledger = tacit.Ledger()
    ledger.record(Step(Everyone(), (GaussianSum(group="g", clip_norm=1.0, noise_std=1.0, noise="tree"),)))
    for name in ("pld", "rdp", "moments", "strong"):
        with pytest.raises(Unproved, match="noise 'tree'; only 'gaussian' and 'discrete' have a proof"):
            tacit.account(ledger, delta=1e-5, accountant=name)
    # Nor does a mechanism of ours add its independent noise in the name of another.
    receipt = ledger.record(Step(Everyone(), (GaussianSum(group="g", clip_norm=1.0, noise_std=1.0, noise="tree"),)))
    with pytest.raises(ValueError, match="record the queries of the mechanism that releases"):
        tacit.SumQuery(group="g", clip_norm=1.0, noise_std=1.0).release(receipt, torch.zeros(2), SecureSource())


# -- 23. Checkpoints were unpickled, which runs whatever the file says.
def test_23_a_checkpoint_is_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(start())
    run.save(tmp_path / "point")
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (ran,))

    other = start(ledger=run.ledger)
    for file in ("model.safetensors", "optimizer.safetensors", "run.json"):
        content = (tmp_path / "point" / file).read_bytes()
        (tmp_path / "point" / file).write_bytes(pickle.dumps(Trap()))
        with pytest.raises(ValueError, match="point"):
            other.load(tmp_path / "point")
        (tmp_path / "point" / file).write_bytes(content)
    assert not ran.exists()
    for module, name in ((torch, "load"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(module, name, lambda *args, **kwargs: pytest.fail("unpickled"))
    other.load(tmp_path / "point")
    assert other.step == 3


def test_every_number_is_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    there = {number for number in range(1, 24) if f"def test_{number:02d}_" in text}
    assert there == set(range(1, 24))


# 5. Data parallel: noise was added once per rank or not at all, every rank saw the same data, equal seeds correlated
# the sampling, an empty share skipped the step. tests/parallel shows that a run of several processes is the run of one;
# here: processes that were not told of each other must not each take themselves for the whole.
@pytest.mark.parametrize("case", ["wrapped", "several processes"])
def test_05_data_parallel_training_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = torch.nn.Linear(3, 2)
    model = torch.nn.DataParallel(inner) if case == "wrapped" else inner
    if case == "several processes":
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    said = "inner model" if case == "wrapped" else "parallel=tacit.Parallel"
    with pytest.raises(ValueError, match=said):
        tacit.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            torch.randn(8, 3),
            lot_size=4,
            steps=1,
            clipping=tacit.Flat(1.0),
            noise_multiplier=1.0,
        )
