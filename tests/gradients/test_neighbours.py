"""What one record more may not do to what the engine computes of the others: each of these was once possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients
from tacit.gradients import precision
from tacit.gradients.factors.cancellation import bounded_squares
from tacit.gradients.factors.contribution import guarded_squares, row_rounding
from tacit.gradients.factors.outer import Outer
from tacit.gradients.factors.parameter_uses import Part, Region
from tacit.gradients.factors.uses import Uses
from tacit.gradients.tap import unscaled


def each_gradient(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, **how: Any) -> Any:
    with gradients.record(model, isolate=False, **how) as tape:
        loss(model(x), y).backward()
    tape.norms()
    return {
        name: torch.cat([part.contribution.instantiate(0, len(x)) for part in uses.parts])
        for name, uses in tape._measured.uses.items()
    }


def probabilities(y: Tensor) -> Tensor:
    return y.abs() / (1 + y.abs())


LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str | None]] = {
    "mse": (F.mse_loss, None),
    "l1": (F.l1_loss, None),
    "smooth": (F.smooth_l1_loss, None),
    "huber": (F.huber_loss, None),
    "logits": (lambda o, y: F.binary_cross_entropy_with_logits(o, probabilities(y)), None),
    "kl": (lambda o, y: F.kl_div(o.log_softmax(-1), y.softmax(-1), reduction="batchmean"), None),
    "kl mean": (lambda o, y: F.kl_div(o.log_softmax(-1), y.softmax(-1)), None),
    "soft targets": (lambda o, y: F.cross_entropy(o.transpose(1, 2), y.softmax(-1).transpose(1, 2)), None),
    "classes": (lambda o, y: F.cross_entropy(o.transpose(1, 2), y.argmax(-1), label_smoothing=0.1), None),
    "nll": (lambda o, y: F.nll_loss(o.log_softmax(-1).transpose(1, 2), y.argmax(-1)), None),
    "poisson": (lambda o, y: F.poisson_nll_loss(o, y.abs()), None),
    "mean": (lambda o, y: ((o - y) ** 2).mean(), None),
    "means": (lambda o, y: ((o - y) ** 2).mean((0, 2)).sum(), None),
    "a sum divided": (lambda o, y: ((o - y) ** 2).sum() / len(o), "mean"),
    "a mean times a third": (lambda o, y: F.mse_loss(o, y) / 3, "mean"),
    "a sum divided by three more": (lambda o, y: ((o - y) ** 2).sum() / (3 * len(o)), "mean"),
    "a mean multiplied": (lambda o, y: ((o - y) ** 2).flatten(1).sum(1).mean() * len(o), "sum"),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_no_gradient_contains_the_number_of_examples(kind: str) -> None:
    """To the last bit: 1/B in the factors of a mean loss would round everybody's another way in a larger batch."""
    loss, declared = LOSSES[kind]
    torch.manual_seed(0)
    model = nn.Linear(4, 16)
    x, y = torch.randn(60, 3, 4), torch.randn(60, 3, 16)
    found = {n: each_gradient(model, loss, x[:n], y[:n], reduction=declared) for n in (48, 49, 53, 60)}
    for n, grads in found.items():
        for name, values in grads.items():
            wanted = found[48][name]
            assert torch.equal(values[:48], wanted), (n, name)


def test_a_mean_loss_of_cancelling_targets_moves_by_one_record(flat: Any) -> None:
    """Everybody's gradient is exactly zero; with 1/B in it, it would be the rounding of 2^30, clipped to S, in each."""
    model = nn.Linear(4, 16)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)

    p = torch.randn(16, generator=torch.Generator().manual_seed(2)).mul_(2.0**20).round_() * 2.0**10
    q = p.flip(0) + 2.0**12
    targets = torch.stack([p, q, -(p + q)])  # they add up to nothing, exactly, unless something rounds them

    def computed(records: int, newcomer: bool) -> Tensor:
        y = targets.expand(records, 3, 16).clone()
        y[0] = y[0] * (not newcomer)
        with gradients.record(model) as tape:
            F.mse_loss(model(torch.zeros(records, 3, 4)), y).backward()
        return tape.clipped_sum(flat(1.0))["bias"].double()

    for records in (31, 100, 300):
        moved = float((computed(records + 1, True) - computed(records, False)).norm())
        assert moved <= 1 + precision.MARGIN


@pytest.mark.parametrize("positions", [100, 257])
@pytest.mark.parametrize("half", [True, False])
def test_an_ignored_target_changes_no_other_gradient(positions: int, half: bool, flat: Any) -> None:
    """Everybody has the same targets but one, whose are all ignored: what it adds is nothing, and so it is."""
    records = 200
    torch.manual_seed(0)
    model = nn.Linear(8, 5)
    x = torch.randn(1, positions, 8).expand(records + 1, positions, 8).clone()
    y = torch.randint(0, 5, (1, positions)).expand(records + 1, positions).clone()
    y[-1] = -100

    def run(n: int, clip: float) -> tuple[Tensor, dict[str, Tensor]]:
        with gradients.record(model, reduction="mean") as tape:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                loss = F.cross_entropy(model(x[:n]).transpose(1, 2), y[:n])
            (loss * 0.7390851332151607).backward()
        return tape.norms(), tape.clipped_sum(flat(clip))

    clip = 1.01 * float(run(2, 1.0)[0][0])
    (norms, without), (others, with_it) = run(records, clip), run(records + 1, clip)
    assert torch.equal(norms, others[:-1])
    moved = sum(float((with_it[name] - without[name]).double().square().sum()) for name in without) ** 0.5
    assert moved <= clip * precision.MARGIN


def test_a_division_is_undone_for_every_number_of_examples() -> None:
    for batch in range(1, 700):
        seed = torch.tensor(1.0) / batch
        assert float(unscaled(seed, "sum", "mean", batch)) == 1.0
        third = torch.tensor(1.0) / (3 * batch)
        assert unscaled(third, "sum", "mean", batch) == torch.tensor(1 / 3)
        for percent in range(1 + batch % 13, 101, 13):  # every percentage, at every thirteenth batch size
            factor = torch.tensor(percent / 100)
            for rounded in (factor / batch, torch.tensor(1.0) / batch * factor):
                assert unscaled(rounded, "sum", "mean", batch) == factor


class Tied(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        nn.init.zeros_(self.table.weight)

    def forward(self, words: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        h = self.table(words).sum(1) + z
        return h, F.linear(h, self.table.weight)


def test_a_record_with_many_lookups_changes_no_other_norm_in_a_tied_table(flat: Any) -> None:
    records, words, rows = 50, 2048, 2100
    x, z = torch.zeros(records + 1, words, dtype=torch.long), torch.ones(records + 1, 4)
    x[-1] = torch.arange(words)
    c = torch.zeros(records + 1, rows)
    c[:, 0] = -0.77 * words

    def run(n: int) -> tuple[Tensor, Tensor]:
        model = Tied(rows, 4)
        with gradients.record(model) as tape:
            h, y = model(x[:n], z[:n])
            (h.sum() + (y * c[:n]).sum()).backward()
        return tape.norms().clone(), tape.clipped_sum(flat(1.0))["table.weight"].double()

    (before, without), (after, with_it) = run(records), run(records + 1)
    assert torch.equal(before, after[:-1])
    assert float((with_it - without).norm()) <= 1 + precision.MARGIN


def test_the_norm_of_many_lookups_is_added_in_float64(flat: Any) -> None:
    """One row of 1 and 2^19 whose squares are each lost beside it in float32."""
    rows = 1 << 19
    model = nn.Embedding(rows, 1)
    c = torch.full((1, rows, 1), (0.99 * 2.0**-25) ** 0.5)
    c[0, 0] = 1.0
    with gradients.record(model) as tape:
        (model(torch.arange(rows).unsqueeze(0)) * c).sum().backward()
    true = float(c.double().norm())
    assert float(tape.norms()[0]) * (1 + 2 * precision.NORM_SHARE) >= true
    assert float(tape.clipped_sum(flat(1e-3))["weight"].double().norm()) <= 1e-3 * (1 + precision.MARGIN)


def test_too_many_positions_are_refused() -> None:
    factor = torch.zeros(1, 1, precision.MOST_POSITIONS + 1, 1)
    with pytest.raises(ValueError, match="more than 1048576 positions"):
        Uses([Part(Outer(factor, factor, (1, 1)), None)], torch.Size((1, 1)))


def test_regions_of_one_parameter_are_summed_by_the_rule_they_are_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight regions at 16 positions each: what may be in a call follows from 128 positions, as what cancels does."""
    parts = [
        Part(Outer(torch.randn(40, 1, 16, 5), torch.randn(40, 1, 16, 3), (3, 5)), Region(15 * k, (3, 5), (5, 1)))
        for k in range(8)
    ]
    uses = Uses(parts, torch.Size((24, 5)))
    bounded_squares([uses])
    seen: list[int] = []
    original = precision.gather

    def watched(out: Tensor, lo: int, hi: int, first: int, *rest: Any, **others: Any) -> None:
        seen.append(first)
        original(out, lo, hi, first, *rest, **others)

    monkeypatch.setattr("tacit.gradients.factors.outer.gather", watched)
    uses.assign(torch.empty(24, 5), torch.ones(40))
    assert len(seen) == 8
    for first in seen:
        assert first == 1 or 4 * precision.UNIT * (first * 16 + 2) * first * precision.spread(128) <= precision.SHARE


def test_where_uses_meet_every_call_is_added_in_float64() -> None:
    """2^24 and fifteen ones, each lost beside it in float32."""
    a, g = torch.ones(16, 1, 2, 1) * 0.5, torch.ones(16, 1, 2, 1)
    a[0] *= 2.0**24
    total = torch.zeros(1, 1, dtype=torch.float64)
    Outer(a, g, (1, 1)).widen(total, torch.ones(16), 1)
    assert float(total) == 2.0**24 + 15


def depths(leaves: int) -> set[tuple[int, ...]]:
    """How deep the leaves lie, for every binary tree."""
    found = {(0,)} if leaves == 1 else set()
    for left in range(1, leaves // 2 + 1):
        for one in depths(left):
            found |= {tuple(sorted(1 + d for d in one + other)) for other in depths(leaves - left)}
    return found


@pytest.mark.parametrize("terms", range(2, 11))
def test_one_addition_after_the_other_is_the_deepest_tree(terms: int) -> None:
    """So that the sum of (depth + 2)² over the terms of an entry is largest there, in whatever order a kernel adds."""
    chain = (*range(1, terms), terms - 1)
    worst = max(sum((d + 2) ** 2 for d in tree) for tree in depths(terms))
    assert chain in depths(terms)
    assert worst == sum((d + 2) ** 2 for d in chain)
    assert precision.call_error(terms, 1) == pytest.approx((terms * worst) ** 0.5)


def test_the_bound_of_a_call_holds_for_another_order_in_every_entry() -> None:
    """Every entry has one large term, another record's in each, to which all others are added one by one, and lost."""
    records = precision.CALLS[0]
    terms = torch.full((records, records), 0.99 * precision.UNIT)
    terms.fill_diagonal_(1.0)
    wrong = torch.zeros(records, dtype=torch.float64)
    for entry in range(records):
        column = terms[:, entry]
        total = column[entry]
        for other in range(records):
            total = total + column[other] if other != entry else total
        wrong[entry] = float(total) - float(column.double().sum())
    limit = float(terms.double().norm(dim=1).max())
    assert records**1.5 / 2 < float(wrong.norm()) / precision.UNIT <= precision.call_error(records, 1) * limit


def test_sizes_of_terms_are_bounds_however_many_entries_there_are() -> None:
    wide = torch.full((1, 1 << 21), (0.99 * 2.0**-25) ** 0.5)
    wide[0, 0] = 1.0
    true = float(wide.double().square().sum())
    assert float(guarded_squares(wide)[0]) * (1 + row_rounding(1 << 21) * precision.UNIT) >= true


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("positions", "width"), [(1, 48), (3, 40), (16, 32), (64, 16)])
def test_with_the_same_factors_one_record_more_leaves_norms_and_calls_as_they_were(
    positions: int, width: int, times: int
) -> None:
    """Part of the premise, as it is on this machine: places are counted from the start of a batch."""
    torch.manual_seed(1)
    outputs = times * width
    a, g, w = torch.randn(130, 1, positions, width), torch.randn(130, 1, positions, outputs), torch.rand(130)
    calls = []
    for n in (128, 129, 130):
        outer = Outer(a[:n].clone(), g[:n].clone(), (outputs, width))
        call, size, sums = outer.contraction(w[:n].clone()), precision.per_call(positions), []
        for lo, hi in precision.pieces(128, size):
            sums.append(call(lo, hi))
        calls.append((outer.squares()[:128], torch.stack(sums)))
    for squares, sums in calls[1:]:
        assert torch.equal(squares, calls[0][0])
        assert torch.equal(sums, calls[0][1])


@pytest.mark.parametrize(
    ("positions", "inputs", "outputs"),
    [
        (20, 9, 7),
        (20, 10, 7),
        (6, 17, 13),
        (33, 18, 14),
        (16, 16, 16),
        (20, 7, 20),
        (33, 9, 41),
        (16, 16, 48),
        (6, 1, 9),
    ],
)
def test_terms_that_cancel_add_up_to_the_same_in_every_place(
    positions: int, inputs: int, outputs: int, flat: Any
) -> None:
    """Terms of 2^20 cancel up to their rounding, which a batched product may do by where in memory a matrix begins."""
    generator, half = torch.Generator().manual_seed(3), positions // 2
    x = 2.0**20 * torch.randn(positions, inputs, generator=generator)
    c = torch.randn(positions, outputs, generator=generator)
    order = torch.randperm(half, generator=generator)
    x[half : 2 * half], c[half : 2 * half] = x[:half][order], -c[:half][order]
    x[2 * half :] = 0
    found = []
    for place in range(16):
        xs, cs = torch.zeros(16, positions, inputs), torch.zeros(16, positions, outputs)
        xs[place], cs[place] = x, c
        model = nn.Linear(inputs, outputs, bias=False)
        with gradients.record(model) as tape:
            (model(xs) * cs).sum().backward()
        found.append(tape.clipped_sum(flat(1.0))["weight"])
    assert all(torch.equal(each, found[0]) for each in found[1:])
