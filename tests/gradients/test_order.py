"""Rows that data of the batch has picked or put in order: labels and other constants for each place do not meet them.

As many records as features, so that no shape gives anything away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, invert_permutation, pack_padded_sequence, pad_packed_sequence

import tacit
from tacit import gradients

B = 5
Body = Callable[["Model", Tensor, Tensor], Tensor]
PLACES, TABLE = torch.arange(float(B)), torch.linspace(0.1, 2, B * B).view(B, B)
LABELS = torch.tensor([2, 0, 4, 1, 1])


class Model(nn.Module):
    """What `body` makes of trained features of x and of the labels y, one or several numbers for each record."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.inner, self.labels = body, nn.Linear(B, B), LABELS
        self.slots, self.table = nn.Parameter(torch.zeros(B)), nn.Parameter(torch.randn(B, B))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.rnn, self.frozen = nn.GRU(B, 3, batch_first=True), nn.Linear(B, B).requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.body(self, self.inner(x), self.labels if y is None else y)


def by(h: Tensor) -> Tensor:
    return h.detach()[:, 0].argsort()


def ordered(h: Tensor) -> Tensor:
    return h[by(h)]


def there_and_back(h: Tensor) -> Tensor:
    order = by(h)
    return h[order].sin()[order.argsort()]


def back_by(h: Tensor, inverse: Callable[[Tensor], Tensor]) -> Tensor:
    order = by(h)
    return h[order].sin()[inverse(order)]


def written(order: Tensor) -> Tensor:
    found = torch.empty_like(order)
    found[order] = torch.arange(len(order))
    return found


def invert(order: Tensor) -> Tensor:
    found = invert_permutation(order)
    assert found is not None
    return found


def mask(h: Tensor) -> Tensor:
    return h.detach()[:, 0] > h.detach()[:, 1]


def picked(h: Tensor) -> Tensor:
    return h[mask(h)]


def positive(h: Tensor) -> Tensor:
    """Entries of all records, in one dimension."""
    return h[h.detach() > 0]


def filled(h: Tensor, key: Any, value: Any) -> Tensor:
    h = h.clone()
    h[key] = value
    return h


def scores(h: Tensor, bias: Tensor | None = None) -> Tensor:
    parts = h.unsqueeze(2)
    return F.scaled_dot_product_attention(parts, parts, parts, attn_mask=bias)


def tokens(h: Tensor) -> Tensor:
    """Sequences of as many steps as there are records, in order."""
    return ordered(h).unsqueeze(2) * torch.linspace(-1, 1, 4)


def doubled(h: Tensor) -> Tensor:
    """Entries along the records' dimension that are no records."""
    return h.unsqueeze(1).expand(-1, 2, -1).flatten(0, 1)


def listed(h: Tensor, y: Tensor, steps: Any, lengths: Any) -> Tensor:
    """A loss of sequences whose lengths are Python's numbers."""
    targets = y.unsqueeze(1).expand(-1, 2)[by(h)] % 3 + 1
    return F.ctc_loss(tokens(h).log_softmax(2).transpose(0, 1), targets, steps, lengths, reduction="sum")


RIGHT: dict[str, Body] = {
    "order": lambda m, h, y: ordered(h),
    "there and back, with labels": lambda m, h, y: F.cross_entropy(there_and_back(h), y, reduction="sum"),
    "back by writing places": lambda m, h, y: back_by(h, written) * (1.0 + y.unsqueeze(1)),
    "back by scattering places": lambda m, h, y: back_by(h, invert) * (1.0 + y.unsqueeze(1)),
    "back by sorting": lambda m, h, y: back_by(h, lambda order: order.sort()[1]) * (1.0 + y.unsqueeze(1)),
    "there and back twice": lambda m, h, y: back_by(back_by(h, invert), written) * (1.0 + y.unsqueeze(1)),
    "copied into room": lambda m, h, y: TABLE[: len(h)].clone().copy_(ordered(h)).sin(),
    "of a constant's type": lambda m, h, y: ordered(h).type_as(TABLE[: len(h)].double()).sin().float(),
    "labels in the same order": lambda m, h, y: F.cross_entropy(ordered(h), y[by(h)], reduction="sum"),
    "labels selected": lambda m, h, y: F.cross_entropy(ordered(h), y.index_select(0, by(h)), reduction="sum"),
    "labels of the same mask": lambda m, h, y: F.cross_entropy(picked(h), y[mask(h)], reduction="sum"),
    "labels of the same selection": lambda m, h, y: (
        h[:, 0].masked_select(mask(h)) * y.to(h.dtype).masked_select(mask(h))
    ).sin(),
    "written back": lambda m, h, y: filled(torch.zeros_like(h), mask(h), m.inner(picked(h))) * (1.0 + y.unsqueeze(1)),
    "pointwise": lambda m, h, y: (ordered(h) * PLACES).where(ordered(h) > 0, PLACES),
    "matmul": lambda m, h, y: ordered(h) @ TABLE,
    "bmm": lambda m, h, y: torch.bmm(ordered(h)[:, None], TABLE.expand(len(h), B, B)),
    "baddbmm": lambda m, h, y: torch.baddbmm(
        PLACES.expand(len(h), 1, B), ordered(h)[:, None], TABLE.expand(len(h), B, B)
    ),
    "addmm": lambda m, h, y: torch.addmm(PLACES, ordered(h), TABLE),
    "einsum": lambda m, h, y: torch.einsum("nd,de,ne->n", ordered(h), TABLE, ordered(h)),
    "linear": lambda m, h, y: F.linear(ordered(h), TABLE, PLACES),
    "frozen linear": lambda m, h, y: m.frozen(ordered(h)),
    "trained linear": lambda m, h, y: m.inner(ordered(h)).sin(),
    "trained einsum": lambda m, h, y: torch.einsum("nd,de->ne", ordered(h), m.table).sin(),
    "trained row": lambda m, h, y: (ordered(h) * m.slots).sin(),
    "trained state": lambda m, h, y: m.rnn(ordered(h)[:, None], m.slots[:3].expand(1, len(h), 3) * 2)[0],
    "trained cat": lambda m, h, y: torch.cat([ordered(h), m.slots.expand(len(h), B)], 1).sin(),
    "cat": lambda m, h, y: torch.cat([ordered(h), PLACES.expand(len(h), B)], 1).sin(),
    "stack": lambda m, h, y: torch.stack([ordered(h), PLACES.expand(len(h), B)], 1).sin(),
    "attention": lambda m, h, y: scores(ordered(h), TABLE.log()),
    "attention module": lambda m, h, y: m.attention(tokens(h), tokens(h), tokens(h), attn_mask=TABLE.tril().log())[0],
    "attention module, a bias for each head": lambda m, h, y: m.attention(
        tokens(h), tokens(h), tokens(h), attn_mask=torch.stack([TABLE, -TABLE]).repeat(len(h), 1, 1)
    )[0],
    "attention module, padding of each": lambda m, h, y: m.attention(
        tokens(h), tokens(h), tokens(h), key_padding_mask=torch.arange(B) > y[by(h)].unsqueeze(1)
    )[0],
    "convolution": lambda m, h, y: F.conv1d(ordered(h)[:, None], TABLE[:, None, :3]),
    "ctc": lambda m, h, y: F.ctc_loss(
        tokens(h).log_softmax(2).transpose(0, 1),
        (y[by(h)] % 3 + 1).unsqueeze(1),
        torch.full((len(h),), B),
        torch.ones(len(h), dtype=torch.long),
        reduction="sum",
    ),
    "ctc, the same lengths in lists": lambda m, h, y: listed(h, y, [B] * len(h), (1,) * len(h)),
    "gather": lambda m, h, y: ordered(h).gather(1, y[by(h)].unsqueeze(1)),
    "gather alike": lambda m, h, y: ordered(h).gather(1, LABELS.expand(len(h), B)).cumsum(1).sin(),
    "scatter": lambda m, h, y: ordered(h).scatter(1, LABELS[:1].expand(len(h), 1), 0.5).sin(),
    "index in pairs": lambda m, h, y: ordered(h)[torch.arange(len(h)), y[by(h)]],
    "another order": lambda m, h, y: ordered(h)[torch.arange(len(h)).flip(0)].sin(),
    "index within": lambda m, h, y: ordered(h)[:, LABELS].cumsum(1).sin(),
    "assigned within": lambda m, h, y: filled(ordered(h), (slice(None), 1), 0.5).sin(),
    "assigned a row": lambda m, h, y: filled(ordered(h), slice(None), PLACES) + ordered(h),
    "assigned at a mask": lambda m, h, y: filled(h, mask(h), PLACES) + h,
    "reshaped": lambda m, h, y: ordered(h).reshape(len(h), 1, B).expand(len(h), 2, B).flatten(0, 1) * PLACES,
    "layer_norm": lambda m, h, y: F.layer_norm(ordered(h), (B,), PLACES, PLACES),
    "softmax": lambda m, h, y: ordered(h).softmax(1).cumsum(1).sin(),
    "top-k within": lambda m, h, y: ordered(h).topk(2, 1).values,
    "noise": lambda m, h, y: ordered(h) + 0 * torch.randn_like(ordered(h)),
    "dropout": lambda m, h, y: F.dropout(ordered(h), 0.0),
    "embedding": lambda m, h, y: F.embedding(y[by(h)], TABLE) * ordered(h),
    "mse": lambda m, h, y: F.mse_loss(ordered(h), y[by(h)].to(h.dtype).unsqueeze(1).expand(len(h), B), reduction="sum"),
    "class weights": lambda m, h, y: F.cross_entropy(ordered(h), y[by(h)], PLACES.to(h.dtype), reduction="sum"),
    "first state": lambda m, h, y: m.rnn(ordered(h)[:, None], torch.ones(1, len(h), 3, dtype=h.dtype))[0],
    "first state of each": lambda m, h, y: m.rnn(
        ordered(h)[:, None], TABLE[y, :3].to(h.dtype)[None].index_select(1, by(h))
    )[0],
    "entries": lambda m, h, y: (positive(h) * 3).sin(),
}


@pytest.mark.parametrize("name", RIGHT)
def test_reordering_that_treats_all_rows_alike_gives_correct_gradients(name: str, naive: Any, compare: Any) -> None:
    model, x = Model(RIGHT[name]), batch()
    each = naive(model, lambda i: model(x[i : i + 1], LABELS[i : i + 1]).sum(), B)
    with gradients.record(model) as tape:
        model(x, LABELS.clone()).sum().backward()
    compare(tape, each)


@pytest.mark.parametrize("name", RIGHT)
def test_changing_one_example_in_an_accepted_reordering_changes_no_other_norm(name: str) -> None:
    x = batch()
    before = norms(RIGHT[name], x, LABELS)
    for i in range(B):
        others = [j for j in range(B) if j != i]
        changed, y = x.clone(), LABELS.clone()
        changed[i], y[i] = 1.5 - 2 * x[i], 3
        assert torch.allclose(norms(RIGHT[name], changed, y)[others], before[others], rtol=1e-4), i
        assert torch.allclose(norms(RIGHT[name], x[others], LABELS[others]), before[others], rtol=1e-4), i


def batch() -> Tensor:
    return torch.randn(B, B, generator=torch.Generator().manual_seed(1))


def norms(body: Body, x: Tensor, y: Tensor) -> Tensor:
    model = Model(body)
    with gradients.record(model) as tape:
        model(x, y.clone()).sum().backward()
    return tape.norms()


def first(h: Tensor, constant: Tensor) -> Tensor:
    """As many rows of a constant as there are examples, whatever their number."""
    return constant[: len(h)]


MIXING: dict[str, Body] = {
    "places": lambda m, h, y: ordered(h) * first(h, PLACES).unsqueeze(1),
    "places, after transpose": lambda m, h, y: ordered(h).T * first(h, PLACES),
    "places, after a mean of parts": lambda m, h, y: ordered(h).mean(1) * first(h, PLACES),
    "places, after a linear map": lambda m, h, y: m.inner(ordered(h)) * first(h, PLACES).unsqueeze(1),
    "places, after a recurrent layer": lambda m, h, y: m.rnn(ordered(h)[:, None])[1] * first(h, PLACES).view(1, -1, 1),
    "places, written": lambda m, h, y: ordered(h).mul_(first(h, PLACES).unsqueeze(1)),
    "places, where": lambda m, h, y: torch.where((first(h, PLACES) > 2).unsqueeze(1), ordered(h), 0.0),
    "places, of an einsum": lambda m, h, y: torch.einsum("nd,n->nd", ordered(h), first(h, PLACES)),
    "places, of a product": lambda m, h, y: torch.bmm(ordered(h)[:, None], first(h, TABLE)[:, :, None]),
    "places, beside": lambda m, h, y: torch.cat([ordered(h), first(h, TABLE)], 1).prod(1),
    "places, as a first state": lambda m, h, y: m.rnn(ordered(h)[:, None], first(h, TABLE)[None, :, :3])[0],
    "places, trained": lambda m, h, y: ordered(h) + first(h, m.table),
    "places, gathered": lambda m, h, y: ordered(h).gather(1, first(h, LABELS).unsqueeze(1)),
    "places, assigned": lambda m, h, y: filled(ordered(h), (slice(None), 1), first(h, PLACES)) * ordered(h),
    "labels": lambda m, h, y: F.cross_entropy(ordered(h), first(h, LABELS), reduction="sum"),
    "soft labels": lambda m, h, y: F.cross_entropy(ordered(h), first(h, TABLE).sqrt(), reduction="sum"),
    "targets": lambda m, h, y: F.mse_loss(ordered(h), first(h, TABLE), reduction="sum"),
    "each loss": lambda m, h, y: F.mse_loss(ordered(h), first(h, TABLE), reduction="none"),
    "the first two": lambda m, h, y: ordered(h)[torch.tensor([0, 1])],
    "the first two of those picked": lambda m, h, y: picked(h)[torch.tensor([0, 1])],
    "the first two selected": lambda m, h, y: ordered(h).index_select(0, torch.tensor([0, 1])),
    "a slice": lambda m, h, y: ordered(h)[:2],
    "a mask of places": lambda m, h, y: ordered(h)[first(h, PLACES) > 2],
    "the hardest": lambda m, h, y: h.mean(1).sort()[0][-2:],
    "the hardest by places": lambda m, h, y: h.mean(1).sort()[0] * first(h, PLACES),
    "ranks": lambda m, h, y: h * by(h).argsort().unsqueeze(1),
    "one": lambda m, h, y: torch.stack([ordered(h)[i] * i for i in range(len(h))]),
    "lengths of others": lambda m, h, y: pack_padded_sequence(
        h[:, :, None], (y + 1).sort(descending=True)[0], batch_first=True
    ).data.sin(),
    "lengths of others in order": lambda m, h, y: pack_padded_sequence(
        ordered(h)[:, :, None], (y + 1).sort(descending=True)[0], batch_first=True
    ).data.sin(),
}


@pytest.mark.parametrize("name", MIXING)
def test_rows_in_the_order_of_data_meet_no_constant_for_each_place(name: str) -> None:
    """Refused where an operation shows it, or by the comparison of the first batch with its parts."""
    model = Model(MIXING[name])
    engine = gradients.attach(model)
    with pytest.raises(ValueError, match=r"no per-example gradients|by themselves"):
        model(batch(), LABELS.clone()).sum().backward()
    engine.detach()


def test_labels_of_the_loop_do_not_meet_rows_in_the_order_of_data() -> None:
    """A model that forgets to undo its order: the labels are not part of what is compared."""
    model = Model(lambda m, h, y: ordered(h))
    for loss in (F.cross_entropy, lambda h, y: (h[:, 0] * y).sum(), lambda h, y: F.mse_loss(h[:, 0], y.float())):
        with gradients.record(model), pytest.raises(ValueError, match="data has picked or put in order"):
            loss(model(batch()), LABELS).backward()


def packed(h: Tensor, y: Tensor) -> PackedSequence:
    return pack_padded_sequence(h[:, :, None], y + 1, batch_first=True, enforce_sorted=False)


class Sequences(nn.Module):
    """The last step and the last state of a recurrent layer, for sequences of the lengths given."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(3, 4, batch_first=True, **options)
        self.head = nn.Linear(8 if not options else 16, B)
        self.options = options

    def forward(self, x: Tensor, lengths: Tensor, sort: bool = True) -> Tensor:
        rows = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=not sort)
        out, state = self.rnn(rows)
        padded = pad_packed_sequence(out, batch_first=True, total_length=6)[0]
        last = state[0] if isinstance(state, tuple) else state
        result: Tensor = self.head(torch.cat([padded.sum(1), last.transpose(0, 1).flatten(1)], 1))
        return result


@pytest.mark.parametrize("lengths", [[3, 6, 1, 6, 2], [6, 6, 4, 2, 1], [4, 4, 4, 4, 4]])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_sequences_with_lengths_of_the_batch(
    kind: type[nn.Module], options: dict[str, Any], lengths: list[int], naive: Any, compare: Any
) -> None:
    """Packed in the order of their lengths and unpacked, they meet the labels of the user's loop again."""
    model, x, steps = Sequences(kind, **options), torch.randn(B, 6, 3), torch.tensor(lengths)

    def loss(x: Tensor, steps: Tensor, y: Tensor, sort: bool) -> Tensor:
        return F.cross_entropy(model(x, steps, sort), y, reduction="sum")

    each = naive(model, lambda i: loss(x[i : i + 1], steps[i : i + 1], LABELS[i : i + 1], True), B)
    for sort in (True, False) if lengths == sorted(lengths, reverse=True) else (True,):
        with gradients.record(model) as tape:
            loss(x, steps.clone(), LABELS, sort).backward()
        compare(tape, each)


@pytest.mark.parametrize("followed", [False, True])
def test_labels_packed_like_the_sequences(followed: bool, naive: Any, compare: Any) -> None:
    """A label for each step, packed by the same lengths."""

    def body(m: Model, h: Tensor, y: Tensor) -> Tensor:
        rows = packed(h, y).data * torch.linspace(-1, 1, B)
        labels = (y if followed else m.labels).unsqueeze(1).expand(len(h), B)
        return F.cross_entropy(rows, packed(labels, y).data[:, 0], reduction="sum")

    model, x = Model(body), batch()

    def alone(i: int) -> Tensor:
        model.labels = LABELS[i : i + 1]
        return model(x[i : i + 1], LABELS[i : i + 1])  # type: ignore[no-any-return]

    each = naive(model, alone, B)
    model.labels = LABELS
    with gradients.record(model) as tape:
        model(x, LABELS.clone()).backward()
    compare(tape, each)


def test_sequences_sorted_by_hand(naive: Any, compare: Any) -> None:
    def body(m: Model, h: Tensor, y: Tensor) -> Tensor:
        lengths, order = (y + 1).sort(descending=True)
        parts = h[:, :, None].expand(-1, -1, B)
        out, last = m.rnn(pack_padded_sequence(parts[order], lengths, batch_first=True))
        back = order.argsort()
        padded = pad_packed_sequence(out, batch_first=True, total_length=B)[0][back]
        return torch.cat([padded.sum(1), last[0][back]], 1) * torch.arange(1.0, 6)[: len(h), None]

    model, x = Model(body), batch()
    each = naive(model, lambda i: model(x[i : i + 1], LABELS[i : i + 1]).sum() * (i + 1), B)
    with gradients.record(model) as tape:
        model(x, LABELS.clone()).sum().backward()
    compare(tape, each)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_sequences_in_a_private_loop(kind: type[nn.Module]) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(64, 6, 3), torch.randint(1, 7, (64,)), torch.randint(0, B, (64,)))
    model = Sequences(kind)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = tacit.make_private(model, optimizer, data, lot_size=16, steps=3, clipping=tacit.Flat(1.0), noise_multiplier=1)
    for x, lengths, y in run.batches():
        F.cross_entropy(model(x, lengths), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 3
    run.close()


def test_records_of_several_rows_put_in_order_and_back(naive: Any, compare: Any) -> None:
    model, x, y = Model(lambda m, h, y: there_and_back(h)), torch.randn(2 * B, B), torch.arange(2.0 * B)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (model(x).sin() * y.unsqueeze(1)).sum()

    each = naive(model, lambda i: loss(x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2]), B)
    with gradients.record(model, rows_per_record=2) as tape:
        loss(x, y).backward()
    compare(tape, each)


def test_a_batch_of_one_record_has_no_order() -> None:
    counts: list[int] = []
    model = Model(lambda m, h, y: positive(h) * torch.arange(float(counts[0])) if counts else positive(h))
    with torch.no_grad():
        counts.append(model(batch()[:1]).numel())
    with gradients.record(model) as tape:
        model(batch()[:1]).sum().backward()
    assert float(tape.norms().min()) > 0
