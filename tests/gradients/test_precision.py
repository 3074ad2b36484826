"""Rounding: the bounds of `tacit.gradients.precision`, attacked with the records that are worst for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit import gradients
from tacit.gradients import precision
from tacit.gradients.factors.cancellation import bounded_squares
from tacit.gradients.factors.outer import Outer
from tacit.gradients.factors.parameter_uses import Part
from tacit.gradients.factors.uses import Uses
from tacit.gradients.precision import BLOCKS, CALLS, MARGIN, UNIT, call_error, chain_error, gather, one_by_one, per_call

Lot = tuple[Tensor, Tensor]
"""Inputs [records, positions, width] and gradients of the output, of the same shape."""


def test_the_margin_is_what_the_parts_add_up_to() -> None:
    assert 0.9 * MARGIN < precision.margin() <= MARGIN
    for positions in (2, 3, 8, 17, 40, 100, 1000):
        records = per_call(positions)
        assert records == 1 or 4 * UNIT * call_error(records, positions) <= precision.SHARE


def test_slots_of_one_record_fewer_are_slots_and_calls_see_few_records() -> None:
    """Every call of a lot but the last is a call of the lot with one more, in the same place; none is large."""
    for first in CALLS:
        seen: dict[int, list[tuple[int, int]]] = {}
        for batch in (1, 5, 127, 128, 129, 130, 500, 1024, 1025, 2047, 2048):
            calls: list[tuple[int, int]] = []

            def call(lo: int, hi: int, calls: Any = calls) -> Tensor:
                calls.append((lo, hi))
                return torch.tensor([float(hi - lo)])

            out = torch.empty(1)
            gather(out, 0, batch, first, one_by_one(call, first))
            assert float(out) == batch
            assert max(high - low for low, high in calls) <= first
            seen[batch] = calls
        for batch in (129, 1024, 2047):
            assert set(seen[batch][:-1]) <= set(seen[batch + 1])


@pytest.mark.parametrize("records", [16, 128])
def test_a_chain_of_additions_in_float32_stays_within_the_bound_of_a_call(records: int) -> None:
    """Terms a little under half a unit in the last place of the sum: each of them is lost, and that is all of them."""
    generator = torch.Generator().manual_seed(records)
    worst = 0.0
    for _ in range(300):
        terms = torch.rand(records, generator=generator)
        half = records // 2
        terms[half:] = float(terms[:half].sum()) * UNIT * 0.99 * torch.rand(records - half, generator=generator)
        chain = torch.zeros(())
        for term in terms:
            chain = chain + term
        worst = max(worst, abs(float(chain) - float(terms.double().sum())) / UNIT)
    assert records / 8 < worst <= call_error(records, 1)


def exact(lot: Lot) -> Tensor:
    x, c = lot[0].double(), lot[1].double()
    return torch.einsum("bto,bti->boi", c, x)


def computed(lot: Lot, flat: Any, clip: float) -> tuple[Tensor, Tensor]:
    """The engine's norms and clipped sum for a matrix whose recorded factors are exactly those of the lot."""
    x, c = lot
    model = nn.Linear(x.shape[2], c.shape[2], bias=False)
    with gradients.record(model, isolate=False) as tape:
        (model(x) * c).sum().backward()
    return tape.norms().double(), tape.clipped_sum(flat(clip))["weight"].double()


def aligned(records: int, positions: int) -> Lot:
    """Everybody pulls the same way, a part of them by amounts that are lost beside the others."""
    x, c = torch.ones(records, positions, 6), torch.ones(records, positions, 40)
    c[::2] *= 1e-6
    c[::3] *= 1 + 2.0**-20
    return x, c


def boundary(records: int, positions: int) -> Lot:
    """Partial sums that hover about a power of two, where one record more changes how all others are rounded."""
    x, c = torch.ones(records, positions, 6), torch.ones(records, positions, 40)
    c[: records // 2] *= 2.0**7 / (records // 2)
    c[records // 2 :] *= 2.0**-18 * 0.99
    return x, c


def cancelling(records: int, positions: int) -> Lot:
    """Within each record terms of 2^30 cancel, up to what is left of them."""
    generator = torch.Generator().manual_seed(5)
    x, c = (
        torch.randn(records, positions, 6, generator=generator),
        torch.randn(records, positions, 40, generator=generator),
    )
    if positions > 1:
        x[:, 0] *= 2.0**30
        x[:, 1], c[:, 1] = x[:, 0], -c[:, 0]
        x[::2, 1] *= 1 + 2.0**-22
    return x, c


def mixed_scales(records: int, positions: int) -> Lot:
    generator = torch.Generator().manual_seed(6)
    scale = 10.0 ** (36 * torch.rand(records, 1, 1, generator=generator) - 18)
    x = torch.randn(records, positions, 6, generator=generator) * scale
    return x, torch.randn(records, positions, 40, generator=generator) / scale


def denormal(records: int, positions: int) -> Lot:
    """Outputs' gradients of 10^-42 and inputs of 10^18, and the other way round."""
    x, c = torch.full((records, positions, 6), 1e18), torch.full((records, positions, 40), 1e-42)
    x[::2], c[::2] = 1e-42, 1e18
    return x, c


def tiny_and_huge(records: int, positions: int) -> Lot:
    x, c = torch.ones(records, positions, 6), torch.full((records, positions, 40), 1e-5)
    c[records // 3] = 1e15
    return x, c


LOTS: dict[str, Callable[[int, int], Lot]] = {
    f.__name__: f for f in (aligned, boundary, cancelling, mixed_scales, denormal, tiny_and_huge)
}
SHAPES = [(600, 1), (300, 2), (150, 6), (70, 40), (30, 130)]


@pytest.mark.parametrize(("records", "positions"), SHAPES)
@pytest.mark.parametrize("kind", LOTS)
def test_norms_are_bounds_of_the_true_norms(kind: str, records: int, positions: int, flat: Any) -> None:
    """Or, for records whose terms cancel, of the gradient as it was formed: that is the tensor that is added."""
    lot = LOTS[kind](records, positions)
    true = exact(lot).flatten(1).norm(dim=1)
    norms, _ = computed(lot, flat, 1.0)
    mass = (lot[0].double().norm(dim=2) * lot[1].double().norm(dim=2)).sum(1)
    formed = precision.own_rounding(positions, formed=False) * mass * (mass > precision.spread(positions) * true * 0.99)
    assert (norms * (1 + 2 * precision.NORM_SHARE) * (1 + 1e-9) + formed >= true).all()


@pytest.mark.parametrize(("records", "positions"), SHAPES)
@pytest.mark.parametrize("kind", LOTS)
@pytest.mark.parametrize("clip", [1e-3, 1.0])
def test_one_record_moves_the_computed_sum_by_no_more_than_the_margin(
    kind: str, clip: float, records: int, positions: int, flat: Any
) -> None:
    """The theorem itself: x takes the place of y, and y comes last (the new slot); in float64 nothing else changes."""
    x, c = LOTS[kind](records, positions)
    _, before = computed((x, c), flat, clip)
    newcomers = {
        "same": (x[-1], c[-1]),
        "opposite": (x[-1], -c[-1]),
        "huge": (x[-1] * 2.0**20, c[-1]),
        "erasing": cancelling(1, positions)[0][0:1].squeeze(0).mul(2.0**25).expand(positions, 6),
    }
    for name, value in newcomers.items():
        xi, ci = value if isinstance(value, tuple) else (value, torch.ones(positions, 40))
        if name == "erasing" and positions > 1:
            ci = ci * torch.tensor([1.0 if t % 2 else -1.0 for t in range(positions)]).unsqueeze(1)
            xi = xi[:1].expand(positions, 6)
        for place in (records // 2, records - 1):
            xs, cs = torch.cat([x, x[place : place + 1]]), torch.cat([c, c[place : place + 1]])
            xs[place], cs[place] = xi, ci
            _, after = computed((xs, cs), flat, clip)
            assert float((after - before).norm()) <= clip * (1 + MARGIN), name


def test_a_matrix_product_that_adds_in_one_addition_is_the_sum_of_two() -> None:
    assert not precision.adds_once(8, 9, 128, torch.float32, torch.device("cpu"), 1)  # too small to tell
    if not precision.adds_once(64, 50, 128, torch.float32, torch.device("cpu"), torch.get_num_threads()):
        pytest.skip("matrix products of this library add term by term")
    a, g, total = torch.randn(128, 50), torch.randn(128, 64), 1e4 * torch.randn(64, 50)
    assert torch.equal(total + torch.mm(g.t(), a), total.clone().addmm_(g.t(), a))


def test_a_product_that_adds_term_by_term_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def chained(self: Tensor, left: Tensor, right: Tensor, **kwargs: Any) -> Tensor:
        for k in range(left.shape[1]):
            self.add_(torch.outer(left[:, k], right[k]))
        return self

    def halves(self: Tensor, left: Tensor, right: Tensor, **kwargs: Any) -> Tensor:
        half = left.shape[1] // 2
        self.add_(left[:, :half] @ right[:half])
        return self.add_(left[:, half:] @ right[half:])

    for wrong in (chained, halves):
        monkeypatch.setattr(Tensor, "addmm_", wrong)
        assert not precision.adds_once.__wrapped__(64, 50, 128, torch.float32, torch.device("cpu"), 1)
        assert not precision.adds_once.__wrapped__(8, 50, 128, torch.float32, torch.device("cpu"), 1)


def test_blocks_of_a_chain_round_as_bounded() -> None:
    sums = torch.full((16,), 1.0 + 2.0**-23) * 8
    chain = torch.zeros(())
    for value in sums:
        chain = chain + value
    assert abs(float(chain) - float(sums.double().sum())) <= UNIT * chain_error(8, 128)
    assert chain_error(1, BLOCKS[0]) > chain_error(4, BLOCKS[0])
    assert chain_error(192, 2048) == 192 * 55 + 2048  # ten full calls, and what is left


def test_coarser_products_are_refused(flat: Any) -> None:
    model = nn.Linear(3, 2)
    with gradients.record(model, isolate=False) as tape:
        model(torch.ones(4, 3)).sum().backward()
    try:
        torch.set_float32_matmul_precision("medium")
        with pytest.raises(ValueError, match="set_float32_matmul_precision"):
            tape.clipped_sum(flat(1.0))
    finally:
        torch.set_float32_matmul_precision("highest")
    if torch.set_flush_denormal(True):
        try:
            with pytest.raises(ValueError, match="set_flush_denormal"):
                tape.clipped_sum(flat(1.0))
        finally:
            torch.set_flush_denormal(False)
    tape.clipped_sum(flat(1.0))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(60, 200), nn.ReLU(), nn.Linear(200, 10)), (60,)),
        (nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 8, 3)), (3, 12, 12)),
        (nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), (10, 32)),
    ],
    ids=["mlp", "cnn", "transformer"],
)
def test_a_records_factors_do_not_depend_on_the_other_rows(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Part of the premise, as it is on this machine: exchanging a row leaves the bits of all others alone.

    Not looked for here, and not always true: batches of another size may be computed by another kernel.
    """
    torch.manual_seed(0)
    x = torch.randn(64, *shape)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        out = model(x)
        out.square().sum().backward()
        assert x.grad is not None
        return out.detach(), x.grad

    other = x.clone()
    other[20] = 1e3 * torch.randn(shape)
    kept = torch.arange(64) != 20
    for a, b in zip(run(x), run(other), strict=True):
        assert torch.equal(a[kept], b[kept])


@pytest.mark.parametrize("positions", [2, 6, 40, 130])
def test_records_that_are_summed_together_have_terms_no_larger_than_the_proof_allows(positions: int) -> None:
    """With a weight of S / norm the terms that meet others are at most ρ·S; the rest is formed by itself first."""
    x, c = cancelling(20, positions)
    x[10:], c[10:] = torch.randn(10, positions, 6), torch.randn(10, positions, 40)
    uses = Uses([Part(Outer(x.unsqueeze(1), c.unsqueeze(1), (40, 6)), None)], torch.Size((40, 6)))
    norms = bounded_squares([uses])[0].double().sqrt()
    mass = (x.double().norm(dim=2) * c.double().norm(dim=2)).sum(1)
    together = [i for i in range(20) if i not in uses.apart]
    assert (mass[together] <= precision.spread(positions) * norms[together] * (1 + 1e-3)).all()
    assert len(uses.apart) >= 10 and not set(uses.apart) & set(range(10, 20))  # ordinary records are not touched


@pytest.mark.parametrize(("positions", "inputs", "outputs"), [(16, 2304, 256), (49, 1600, 192), (3, 9000, 700)])
def test_norms_of_wide_rows_at_many_positions_are_bounds_and_hardly_enlarged(
    positions: int, inputs: int, outputs: int
) -> None:
    torch.manual_seed(0)
    a, g = torch.randn(3, 1, positions, inputs), torch.randn(3, 1, positions, outputs)
    outer = Outer(a, g, (outputs, inputs))
    assert outer.gram_is_cheaper()
    uses = Uses([Part(outer, None)], torch.Size((outputs, inputs)))
    norms = bounded_squares([uses])[0].double().sqrt()
    true = torch.einsum("nbto,nbti->noi", g.double(), a.double()).flatten(1).norm(dim=1)
    assert (norms >= true * (1 - 2 * precision.NORM_SHARE)).all()
    assert (norms <= true * (1 + 1e-3)).all()


def test_gram_matrices_in_pieces_are_no_further_off_than_their_bound() -> None:
    """All terms have one sign, so that a long chain of additions in float32 would be far off."""
    a, g = 1 + torch.rand(2, 1, 8, 6000), 1 + torch.rand(2, 1, 8, 700)
    outer = Outer(a, g, (700, 6000))
    assert outer.in_pieces()
    squares, sizes = outer.measured()
    true = torch.einsum("nbto,nbti->noi", g.double(), a.double()).flatten(1).square().sum(1)
    assert ((squares.double() - true).abs() <= outer.rounding().gram * UNIT * sizes.double()).all()
