"""Decisions of several examples together: through Python values, masks, indices and seeds."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients
from tacit.gradients.guard.guard import _note_fill
from tacit.gradients.layers.registry import Call
from tacit.gradients.traced import Traced

B = 12
X = torch.randn(B, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(B) % 3


class Run(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.linear(self.function(x))


READS: dict[str, Callable[[Tensor], Any]] = {
    "if": lambda x: -x if x.mean() > 0 else x,
    "item": lambda x: x * x.abs().max().item(),
    "float": lambda x: x * float(x.detach().mean()),
    "int": lambda x: x * int(x.sum()),
    "tolist": lambda x: x * x.tolist()[0][0],
    "numpy": lambda x: x * float(x.detach().numpy().mean()),
    "index": lambda x: x * range(100)[x.abs().sum().long()],
    "one example's value": lambda x: x * x.select(1, 0)[0].item(),
    "equal": lambda x: x if torch.equal(x, x * 2) else -x,
    "contains": lambda x: -x if 0.5 in x else x,
    "without gradients": lambda x: _without_gradients(x),
}


def _without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * x.abs().max().item()


@pytest.mark.parametrize("size", [1, B])
@pytest.mark.parametrize("name", list(READS))
@pytest.mark.usefixtures("without_isolation")
def test_values_of_the_batch_read_inside_the_model(name: str, size: int) -> None:
    model = Run(READS[name])
    with pytest.raises(RuntimeError, match="reads values of the batch"), gradients.record(model):
        model(X[:size])
    with pytest.raises(ValueError, match="reads values of the batch"):
        gradients.check(model, X[:size])


def test_values_read_in_the_users_loop(flat: Any) -> None:
    model = Run(lambda x: x * x.shape[1] + len(x.shape))
    engine = gradients.attach(model)
    for _ in range(2):
        out = model(X)
        loss = F.cross_entropy(out, Y)
        assert loss.item() == float(loss)
        loss.backward()
        assert loss.item() > 0
        assert 0 <= (out.argmax(1) == Y).float().mean().item() <= 1
        assert len(out.tolist()) == B
        assert out.detach().numpy().shape == (B, 3)
        engine.clipped_sum(flat(1.0))
        assert loss.item() == float(loss) == loss.tolist() == float(loss.detach().numpy())
        assert torch.equal(out.detach(), out.detach().clone())
        assert len(out.tolist()) == B
    engine.detach()


@pytest.mark.parametrize("size", [B, 2])
def test_values_of_an_earlier_batch_read_inside_the_model(size: int, flat: Any) -> None:
    """Whether or not the first batch has enough examples to be compared, which this model would keep too."""
    kept: list[Tensor] = []
    model = Run(lambda x: (kept.append(x.detach().mean()), x * (kept[-2].item() if len(kept) > 1 else 1.0))[1])
    engine = gradients.attach(model)

    def two_steps() -> None:
        for _ in range(2):
            F.cross_entropy(model(X[:size]), Y[:size]).backward()
            engine.clipped_sum(flat(1.0))

    with pytest.raises(RuntimeError, match="reads values of the batch"):
        two_steps()
    engine.detach()


KEPT: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "a state": lambda x, kept: (h := (x + kept.detach()).tanh(), h),
    "an average": lambda x, kept: (x - kept, 0.9 * kept + 0.1 * x.detach().mean(0)),
    "a mean": lambda x, kept: (x - kept.detach(), x.mean(0)),
    "a queue": lambda x, kept: (x @ kept.T @ kept, x.detach()),
    "a state without a graph": lambda x, kept: (x + kept, x.detach()),
}


@pytest.mark.parametrize("size", [B, 1])
@pytest.mark.parametrize("name", KEPT)
def test_tensors_kept_from_an_earlier_batch_may_not_influence_the_next(name: str, size: int, flat: Any) -> None:
    """A record of the first batch would change the gradients of all the others in the second."""

    class Keeping(nn.Linear):
        kept = torch.zeros(B, 4)

        def forward(self, x: Tensor) -> Tensor:
            out, self.kept = KEPT[name](super().forward(x), self.kept[: len(x)])
            return out

    model = nn.Sequential(Keeping(4, 4), nn.Linear(4, 4))
    engine = gradients.attach(model)

    def step() -> None:
        F.cross_entropy(model(X[:size]), Y[:size]).backward()
        engine.clipped_sum(flat(1.0))

    step()
    with pytest.raises((ValueError, RuntimeError), match="computed from an earlier batch"):
        step()
    engine.detach()


@pytest.mark.parametrize("taken", [lambda t: t.detach(), copy.deepcopy])
@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.usefixtures("without_isolation")
def test_an_earlier_batch_is_one_without_its_graph_too(loop: bool, taken: Callable[[Tensor], Tensor]) -> None:
    kept: list[Tensor] = []
    model = Run(lambda x: (kept.append(x), x * taken(kept[-2]) if len(kept) > 1 and not loop else x)[1])

    def step() -> None:
        losses = F.cross_entropy(model(X), Y, reduction="none")
        (losses * taken(kept[-2])[:, 0] if loop and len(kept) > 1 else losses).sum().backward()

    with gradients.record(model) as tape:
        step()
        tape.discard()
        with pytest.raises(ValueError, match="computed from an earlier batch"):
            step()


@pytest.mark.usefixtures("without_isolation")
def test_an_earlier_batch_is_not_handed_out_as_bytes() -> None:
    kept: list[Tensor] = []
    model = Run(lambda x: (kept.append(x), x * pickle.loads(pickle.dumps(kept[-2])) if len(kept) > 1 else x)[1])
    with gradients.record(model) as tape:
        model(X)
        tape.discard()
        with pytest.raises(RuntimeError, match="reads values of the batch"):
            model(X)


def test_an_earlier_batch_of_one_with_parameters_in_the_loss() -> None:
    model, kept = nn.Linear(4, 4), list[Tensor]()
    with gradients.record(model) as tape:
        for _ in range(2):
            out = model(X[:1])
            loss = (out * F.linear(kept[-1], model.weight) if kept else out).sum()
            with pytest.raises(ValueError, match="computed from an earlier batch") if kept else nullcontext():
                loss.backward()
            tape.discard()
            kept.append(out.detach())


def test_an_evaluation_does_not_free_tensors_kept_from_an_earlier_batch(flat: Any) -> None:
    """In which it makes something new of it, while there is no batch."""

    class Keeping(nn.Linear):
        kept = torch.ones(3)

        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x) * self.kept
            self.kept = out.detach().mean(0) if self.training else 0.5 * self.kept + out.mean(0)
            return out

    model = Keeping(4, 3)
    engine = gradients.attach(model)
    F.cross_entropy(model(X), Y).backward()
    engine.clipped_sum(flat(1.0))
    model.eval()
    with torch.no_grad():
        model(X.clone())
    model.train()
    with pytest.raises(ValueError, match="computed from an earlier batch"):
        F.cross_entropy(model(X), Y).backward()
    engine.detach()


def test_a_batch_of_one_is_no_excuse_for_what_it_was_cut_from() -> None:
    model = Run(lambda x: x * x._base.mean(0))
    with gradients.record(model), pytest.raises(ValueError, match="was cut from"):
        model(torch.rand(B, 4)[3:4])


def test_a_gradient_hook_inside_the_model_that_mixes_examples_is_refused() -> None:
    """For gradients with respect to the batch: the hook sees those of all examples."""

    def run(x: Tensor) -> Tensor:
        found: list[Tensor] = []
        given = x.detach().requires_grad_()
        out = given.square()
        out.register_hook(lambda grad: found.append((grad * given).mean(0)))  # type: ignore[no-untyped-call]
        torch.autograd.grad(out.square().sum(), given)
        return x * found[0]

    model = Run(run)
    with gradients.record(model), pytest.raises(ValueError, match="gradient hook"):
        model(X)


WRITTEN: dict[str, Callable[[Tensor, Tensor], Any] | None] = {
    "never": None,
    "in place": lambda kept, x: kept.add_(x),
    "a part": lambda kept, x: kept[:3].copy_(x[:3]),
    "unseen": lambda kept, x: kept.data.add_(x),
    "exchanged": lambda kept, x: setattr(kept, "data", x),
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize(
    "make", [torch.zeros_like, torch.ones_like, lambda x: torch.full_like(x, 0.5)], ids=["zeros", "ones", "full"]
)
def test_constants_that_a_model_keeps(make: Callable[[Tensor], Tensor], how: str, flat: Any) -> None:
    """They are like the first batch in size alone, unless something of it was written to them."""

    class Keeping(nn.Linear):
        kept: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.kept = make(x) if self.kept is None else self.kept
            out = super().forward(x + self.kept)
            if write is not None:
                write(self.kept, x.detach())
            return out

    model, write = Keeping(4, 3), WRITTEN[how]
    engine = gradients.attach(model)
    for step in range(3):
        refused = write is not None and step > 0
        with pytest.raises(ValueError, match="no per-example gradients") if refused else nullcontext():
            F.cross_entropy(model(X), Y).backward()
        engine.discard() if refused else engine.clipped_sum(flat(1.0))
    engine.detach()


def test_an_earlier_loss_takes_no_part_in_the_next(flat: Any) -> None:
    model = nn.Linear(4, 3)
    engine = gradients.attach(model)
    average: Any = None
    for step in range(2):
        loss = F.cross_entropy(model(X), Y)
        with pytest.raises(ValueError, match="computed from an earlier batch") if step else nullcontext():
            (loss if average is None else loss / average).backward()
        average = loss.detach()
        engine.clipped_sum(flat(1.0)) if not step else engine.discard()
    engine.detach()


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_loop_keeps_count(when: str, flat: Any) -> None:
    """Of losses and right answers, before backward, before the step or after it."""
    model = Run(lambda x: x)
    engine = gradients.attach(model)
    total, right, losses = torch.zeros(()), torch.zeros((), dtype=torch.long), list[Tensor]()

    def count(out: Tensor, loss: Tensor) -> None:
        nonlocal total, right
        total += loss.detach()
        right = right + (out.argmax(1) == Y).sum()
        losses.append(loss.detach())

    for _ in range(3):
        out = model(X)
        loss = F.cross_entropy(out, Y)
        if when == "before":
            count(out, loss)
        loss.backward()
        if when == "between":
            count(out, loss)
        engine.clipped_sum(flat(1.0))
        if when == "after":
            count(out, loss)
    assert float(total) == pytest.approx(float(torch.stack(losses).sum()))
    assert 0 <= int(right) <= 3 * B
    engine.detach()


def test_a_failed_forward_is_over(flat: Any) -> None:
    model = Run(lambda x: x * x.max().item())
    engine = gradients.attach(model)
    with pytest.raises(RuntimeError, match="reads values"):
        model(X)
    model.function = lambda x: x
    loss = F.cross_entropy(model(X), Y)
    loss.backward()
    assert loss.item() > 0
    engine.clipped_sum(flat(1.0))


def above(x: Tensor) -> Tensor:
    return x.detach() > x.detach().mean()


def top(x: Tensor) -> Tensor:
    return x.detach().topk(3).indices


def assigned(x: Tensor, key: Any, value: Any = 0.0) -> Tensor:
    x = x * 1
    x[key] = value
    return x


def replaced(x: Tensor) -> Tensor:
    weight = x.detach().clone()
    weight.data = x.detach() - x.detach().mean()
    return weight


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "triangular": lambda v: torch.linalg.solve_triangular(torch.ones(B, B).tril(), v[:, None], upper=False).sum(),
    "mask above the mean": lambda v: v[above(v)].sum(),
    "mask above the mean of one dimension": lambda v: v[v.detach() > v.detach().mean(0, keepdim=True)].sum(),
    "mask above a quantile": lambda v: v[v > torch.quantile(v.detach(), 0.5)].sum(),
    "mask from the k-th largest": lambda v: v[v.detach() >= v.detach().topk(3).values[-1]].sum(),
    "mask through bool": lambda v: v[(v.detach() - v.detach().mean()).relu().bool()].sum(),
    "largest by index": lambda v: v[top(v)].sum(),
    "largest by index_select": lambda v: v.index_select(0, top(v)).sum(),
    "largest by gather": lambda v: v.gather(0, top(v)).sum(),
    "largest by take": lambda v: v.take(top(v)).sum(),
    "part of an order": lambda v: v[v.detach().argsort()[:3]].sum(),
    "part of a sort's indices": lambda v: v[v.detach().sort().indices[-3:]].sum(),
    "nonzero": lambda v: v[above(v).nonzero().flatten()].sum(),
    "drawn by size": lambda v: v[torch.multinomial(v.detach(), 3)].sum(),
    "where": lambda v: torch.where(above(v), v, torch.zeros(())).sum(),
    "masked_fill": lambda v: v.masked_fill(above(v), 0.0).sum(),
    "masked_select": lambda v: v.masked_select(above(v)).sum(),
    "times a mask": lambda v: (v * above(v)).sum(),
    "times a mask, mean over it": lambda v: (v * above(v)).sum() / above(v).sum(),
    "own mask, mean over it": lambda v: (v * (v.detach() > 1)).sum() / (v.detach() > 1).sum(),
    "count of labels": lambda v: (v * (Y == 1)).sum() / (Y == 1).sum(),
    "clamped at the mean": lambda v: v.clamp(max=v.detach().mean()).sum(),
    "softmax over examples": lambda v: (v * torch.softmax(v.detach(), 0)).sum(),
    "assigned at a mask": lambda v: assigned(v, above(v)).sum(),
    "assigned at an index": lambda v: assigned(v, top(v)).sum(),
    "assigned at data of each example": lambda v: assigned(v, v.detach().long().clamp(0, 3)).sum(),
    "a mask built by assignment": lambda v: (v * assigned(torch.zeros(B), top(v), 1.0)).sum(),
    "slice to a data position": lambda v: v.unsqueeze(1).expand(B, 5)[:, : v.detach().argmax(0) + 1].sum(),
    "weights put in place through .data": lambda v: (v * replaced(v)).sum(),
    "column of a data position": lambda v: v.unsqueeze(1).expand(B, 50)[:, v.detach().sum().long()].sum(),
}


@pytest.mark.parametrize("reduction", [None, "sum", "mean", "none"])
@pytest.mark.parametrize("name", list(MIXING))
def test_a_loss_selected_by_several_examples_is_refused(name: str, reduction: Any) -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="no per-example gradients"), gradients.record(model, reduction=reduction):
        MIXING[name](F.cross_entropy(model(X), Y, reduction="none")).backward()


SEEDS: dict[str, Callable[[Tensor], None]] = {
    "mask": lambda v: v.backward(gradient=above(v).float()),
    "softmax": lambda v: v.backward(gradient=torch.softmax(v.detach(), 0)),
    "scale": lambda v: v.sum().backward(gradient=1 / v.detach().max()),
    "total": lambda v: v.sum().backward(gradient=v.detach().sum()),
    "function": lambda v: torch.autograd.backward([v], [above(v).float()]),
}


@pytest.mark.parametrize("reduction", [None, "sum", "mean", "none"])
@pytest.mark.parametrize("name", list(SEEDS))
def test_seeds_that_several_examples_decided(name: str, reduction: Any) -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="no per-example gradients"), gradients.record(model, reduction=reduction):
        SEEDS[name](F.cross_entropy(model(X), Y, reduction="none"))


OWN: dict[str, Callable[[Tensor], Tensor]] = {
    "own mask": lambda v: v[v.detach() > 1].sum(),
    "own mask, filled": lambda v: v.masked_fill(v.detach() > 1, 0.5).sum(),
    "own mask, assigned": lambda v: assigned(v, v.detach() > 1, 0.5).sum(),
    "own weight": lambda v: (v * v.detach().sigmoid()).sum(),
    "another order": lambda v: v[v.detach().argsort()].sum(),
    "there and back": lambda v: v[v.detach().argsort()][v.detach().argsort().argsort()].sum(),
}


@pytest.mark.parametrize("name", list(OWN))
def test_selections_that_depend_on_one_example_alone_give_correct_gradients(
    name: str, naive: Any, compare: Any
) -> None:
    model = nn.Linear(4, 3)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return OWN[name](F.cross_entropy(model(x), y, reduction="none"))

    each = naive(model, lambda i: loss(X[i : i + 1], Y[i : i + 1]), B)
    with gradients.record(model) as tape:
        loss(X, Y).backward()
    compare(tape, each)


def test_own_seeds(naive: Any, compare: Any) -> None:
    model = nn.Linear(4, 3)

    def weighted(i: int) -> Tensor:
        v = F.cross_entropy(model(X[i : i + 1]), Y[i : i + 1])
        return v * v.detach().sigmoid()

    with gradients.record(model, reduction="sum") as tape:
        v = F.cross_entropy(model(X), Y, reduction="none")
        v.backward(gradient=v.detach().sigmoid())
    compare(tape, naive(model, weighted, B))


@pytest.mark.parametrize("size", [0, 1, 2, 5])
@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss])
def test_targets_with_a_column(loss: Any, size: int, naive: Any, compare: Any, flat: Any) -> None:
    model, x, y = nn.Linear(4, 1), torch.randn(size, 4), torch.randn(size, 1)
    with gradients.record(model) as tape:
        loss(model(x), y).backward()
    if size:
        compare(tape, naive(model, lambda i: loss(model(x[i : i + 1]), y[i : i + 1]), size))
    else:
        assert not tape.clipped_sum(flat(1.0))["weight"].any()


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}])
def test_transformer_layers_for_any_number_of_examples(size: int, options: Any, flat: Any) -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options), nn.Linear(4, 2))
    with gradients.record(model) as tape:
        model(torch.randn(size, 5, 4)).sum((1, 2)).mean().backward()
    assert tape.norms().shape == (size,)
    assert all(torch.isfinite(t).all() for t in tape.clipped_sum(flat(1.0)).values())


@pytest.mark.parametrize("sizes", [[], [0]])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_no_packed_sequence_at_all(kind: type[nn.RNNBase], bidirectional: bool, sizes: list[int], flat: Any) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = kind(3, 4, num_layers=2, bidirectional=bidirectional), nn.Linear(4, 2)

        def forward(self, x: Any) -> Tensor:
            out, state = self.rnn(x)
            assert out.data.shape == (0, 8 if bidirectional else 4)
            state = state[0] if isinstance(state, tuple) else state
            return self.head(state[-1])

    empty = nn.utils.rnn.PackedSequence(torch.zeros(0, 3), torch.tensor(sizes, dtype=torch.long))
    engine = gradients.attach(Last())
    F.cross_entropy(engine._recorder.model(empty), torch.zeros(0, dtype=torch.long)).backward()
    assert engine.batch_size == 0
    assert not any(bool(t.any()) for t in engine.clipped_sum(flat(1.0)).values())


@torch.library.custom_op("tacit_tests::relu", mutates_args=())
def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


centred.register_autograd(lambda ctx, grad: grad - grad.mean(0))  # type: ignore[no-untyped-call]


class Centring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(torch.ops.tacit_tests.relu(x))  # type: ignore[no-any-return]


def test_somebodys_own_operation_is_not_trusted_for_its_name() -> None:
    model = Centring()
    with gradients.record(model), pytest.raises(ValueError, match=r"tacit_tests\.relu"):
        model(torch.randn(5, 4))


def test_a_fallback_for_all_after_one_example_failed_is_refused() -> None:
    """A decomposition fails for a batch if it does for one of its matrices."""

    def tried(x: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky(torch.diag_embed(x)).sum(1)
        except RuntimeError:
            return x * 2

    model, good = Run(tried), torch.rand(B, 4) + 0.1
    with gradients.record(model) as tape:
        model(good).sum().backward()
        assert len(tape.norms()) == B
        tape.discard()
        with pytest.raises(ValueError, match="went on in another way"):
            model(torch.cat([good[:-1], -good[:1]]))


FAILING: dict[str, Callable[[Tensor], Any]] = {
    "embedding": lambda x: F.embedding((9 * x).long(), torch.eye(4)),
    "gather": lambda x: x.gather(1, (9 * x).long()),
    "index": lambda x: torch.eye(4)[(9 * x).long()],
    "one_hot": lambda x: F.one_hot((9 * x).long(), 4),
    "cross_entropy": lambda x: F.cross_entropy(x, (9 * x[:, 0]).long(), reduction="none"),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(4 * x, x, reduction="none"),
    "multinomial": lambda x: torch.multinomial(0.5 - x, 1),
    "division": lambda x: 3 // (x - 0.5).long(),
    "assertion": lambda x: torch._assert_async((x < 0.5).all()),
}


def trying(operation: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def tried(x: Tensor) -> Tensor:
        try:
            operation(x)
        except (RuntimeError, IndexError):
            return x * 2
        raise AssertionError("it did not fail")

    return tried


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.usefixtures("without_isolation")
def test_a_model_that_goes_on_after_a_failed_operation_is_refused(name: str) -> None:
    model = Run(trying(FAILING[name]))
    with gradients.record(model), pytest.raises(ValueError, match="went on in another way"):
        model(torch.full((B, 4), 0.9))


PSEUDO: dict[str, Callable[[Tensor], Tensor]] = {
    "another's": lambda out: out.argmax(1).flip(0),
    "after centring": lambda out: (out - out.mean(0)).argmax(1),
    "shifted by all": lambda out: (out.argmax(1) + out.argmax(1).sum()) % 3,
}


@pytest.mark.parametrize("loss", [F.cross_entropy, lambda out, y, **how: F.nll_loss(out.log_softmax(1), y, **how)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", PSEUDO)
def test_targets_made_of_other_examples(name: str, reduction: str, loss: Any) -> None:
    model = nn.Linear(4, 3)
    with gradients.record(model):
        out = model(X)
        total = loss(out, PSEUDO[name](out.detach()), reduction=reduction).sum()
        with pytest.raises(ValueError, match="no per-example gradients"):
            total.backward()


def test_gradients_given_to_backward_are_not_of_an_earlier_batch() -> None:
    model, given = nn.Linear(4, 3), torch.ones(B)
    with gradients.record(model) as tape:
        for step in range(2):
            losses = F.cross_entropy(model(X), Y, reduction="none")
            with pytest.raises(ValueError, match="computed from an earlier batch") if step else nullcontext():
                losses.backward(given)
            given = losses.detach()
            tape.discard()


@pytest.mark.parametrize(("fill", "noted"), [(0.5, 0.5), (2, 2), (torch.tensor(0.5), None)], ids=["0.5", "2", "tensor"])
def test_a_fill_is_noted_only_if_it_is_a_number(fill: Any, noted: float | None) -> None:
    """A tensor may hold anything, and be written to."""
    out = torch.zeros(2).as_subclass(Traced)
    _note_fill(Call("full_like", torch.full_like, (out, fill), {}, out, 2, []))
    assert out._filled_with == noted
