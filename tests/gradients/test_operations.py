"""Every operation that can carry a parameter, against the one-example-at-a-time oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B = 5


class Use(nn.Module):
    """Parameters of the given shapes, used by a function."""

    def __init__(self, function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.values = nn.ParameterList(nn.Parameter(torch.randn(s) * 0.5) for s in shapes)
        self.function = function

    def forward(self, *x: Any) -> Any:
        return self.function(*x, *self.values)


LINEAR = [(shape, bias) for shape in [(4,), (3, 4), (2, 3, 4)] for bias in (True, False)]


@pytest.mark.parametrize(("shape", "bias"), LINEAR)
def test_linear(agree: Any, shape: tuple[int, ...], bias: bool) -> None:
    agree(nn.Linear(4, 6, bias=bias), torch.randn(B, *shape))


@pytest.mark.parametrize("positions", [1, 2, 30])
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 3), (40, 50)])
def test_linear_by_gram_and_by_instantiation(agree: Any, positions: int, inputs: int, outputs: int) -> None:
    agree(nn.Linear(inputs, outputs), torch.randn(B, positions, inputs))


CONVOLUTIONS = [
    (nn.Conv1d(3, 4, 3), (3, 9)),
    (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), (4, 11)),
    (nn.Conv2d(3, 4, 3, padding=1), (3, 6, 5)),
    (nn.Conv2d(4, 8, (3, 2), stride=(2, 1), padding=(1, 0), groups=4), (4, 7, 6)),
    (nn.Conv2d(4, 4, 3, groups=4, dilation=2, bias=False), (4, 8, 8)),
    (nn.Conv2d(3, 5, 1), (3, 4, 4)),
    (nn.Conv2d(3, 5, 1, stride=2), (3, 5, 4)),
    (nn.Conv2d(3, 4, 4, padding="same"), (3, 6, 5)),
    (nn.Conv2d(3, 4, 3, padding="valid"), (3, 6, 5)),
    (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (3, 5, 5)),
    (nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"), (3, 5, 5)),
    (nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), (2, 4, 5)),
    (nn.Conv2d(20, 30, 3), (20, 4, 4)),
    (nn.Conv3d(2, 4, 2, padding=1, stride=2), (2, 4, 5, 4)),
    (nn.Conv3d(2, 4, (1, 2, 3), groups=2, bias=False), (2, 3, 4, 5)),
    (nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (3, 5)),
    (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (4, 4, 3)),
    (nn.ConvTranspose2d(3, 4, 2, dilation=2, bias=False), (3, 4, 4)),
    (nn.ConvTranspose3d(2, 3, 2, stride=2), (2, 2, 3, 2)),
]


@pytest.mark.parametrize(
    ("module", "shape"), CONVOLUTIONS, ids=lambda v: str(v).replace(" ", "") if isinstance(v, nn.Module) else ""
)
def test_convolutions(agree: Any, module: nn.Module, shape: tuple[int, ...]) -> None:
    agree(module, torch.randn(B, *shape), reductions=("mean",))


def test_convolution_whose_gradients_are_kept_in_several_chunks(agree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.gradients.factors import contribution as contributions

    monkeypatch.setattr(contributions, "CHUNK_BYTES", 2000)
    agree(nn.Conv2d(2, 3, 3), torch.randn(B, 2, 9, 9), reductions=("mean",))
    agree(nn.Linear(4, 6), torch.randn(B, 30, 4), reductions=("mean",))
    agree(nn.Conv2d(8, 12, 3), torch.randn(B, 8, 4, 4), reductions=("mean",))


def test_convolution_over_frames_of_each_example(agree: Any) -> None:
    convolution = nn.Conv2d(2, 3, 3)

    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = convolution

        def forward(self, x: Tensor) -> Tensor:
            return self.convolution(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    agree(Frames(), torch.randn(B, 4, 2, 5, 5))


@pytest.mark.parametrize("shape", [(7,), (2, 3), ()])
@pytest.mark.parametrize("padding_idx", [None, 0, -1])
def test_embedding(agree: Any, shape: tuple[int, ...], padding_idx: int | None) -> None:
    agree(nn.Embedding(6, 4, padding_idx=padding_idx), torch.randint(0, 6, (B, *shape)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_embedding_bag(agree: Any, mode: str, padding_idx: int | None) -> None:
    agree(nn.EmbeddingBag(6, 4, mode=mode, padding_idx=padding_idx), torch.randint(0, 6, (B, 7)))


def test_embedding_bag_with_sample_weights(agree: Any) -> None:
    agree(
        nn.EmbeddingBag(6, 4, mode="sum"), torch.randint(0, 6, (B, 7)), kwargs={"per_sample_weights": torch.randn(B, 7)}
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag_with_offsets(agree: Any, mode: str) -> None:
    bag = nn.EmbeddingBag(6, 4, mode=mode)
    words, starts = torch.randint(0, 6, (12,)), torch.tensor([0, 3, 3, 8, 10])
    ends = [*starts.tolist()[1:], 12]

    def cut(i: int) -> tuple[Tensor, Tensor]:
        return words[starts[i] : ends[i]], torch.tensor([0])

    agree(bag, words, starts, batch=B, batch_dim={0: None, 1: 0}, cut=cut, dims=[None, 0])


NORMS = [
    (nn.LayerNorm(4), (4,)),
    (nn.LayerNorm(4), (3, 2, 4)),
    (nn.LayerNorm((3, 4), bias=False), (2, 3, 4)),
    (nn.RMSNorm(4), (3, 4)),
    (nn.RMSNorm((3, 4)), (3, 4)),
    (nn.GroupNorm(2, 4), (4,)),
    (nn.GroupNorm(2, 4), (4, 5)),
    (nn.GroupNorm(4, 4), (4, 3, 5)),
    (nn.InstanceNorm1d(4, affine=True), (4, 6)),
    (nn.InstanceNorm2d(4, affine=True), (4, 3, 5)),
    (nn.InstanceNorm3d(2, affine=True), (2, 3, 2, 2)),
    (nn.BatchNorm1d(4).eval(), (4,)),
    (nn.BatchNorm2d(4).eval(), (4, 3, 3)),
]


@pytest.mark.parametrize(
    ("module", "shape"), NORMS, ids=lambda v: str(v).replace(" ", "") if isinstance(v, nn.Module) else ""
)
def test_normalisations(agree: Any, module: nn.Module, shape: tuple[int, ...]) -> None:
    for p in module.parameters():
        nn.init.normal_(p, 1, 0.3)
    agree(module, torch.randn(B, *shape))


USES: dict[str, tuple[nn.Module, tuple[tuple[int, ...], ...]]] = {
    "x @ w": (Use(lambda x, w: x @ w, (4, 6)), ((4,),)),
    "x @ w, rank 3": (Use(lambda x, w: x @ w, (4, 6)), ((3, 4),)),
    "x @ w.t": (Use(lambda x, w: x @ w.t(), (6, 4)), ((3, 4),)),
    "w @ x": (Use(lambda x, w: w @ x, (6, 3)), ((3, 4),)),
    "matmul with a vector": (Use(lambda x, w: torch.matmul(x, w).unsqueeze(1), (4,)), ((3, 4),)),
    "mm": (Use(lambda x, w: torch.mm(x, w), (4, 6)), ((4,),)),
    "mv": (Use(lambda x, w: torch.mv(x, w).unsqueeze(1), (4,)), ((4,),)),
    "addmm": (Use(lambda x, b, w: torch.addmm(b, x, w, alpha=2, beta=0.5), (6,), (4, 6)), ((4,),)),
    "baddbmm": (Use(lambda x, b, w: torch.baddbmm(b, x, w.expand(len(x), -1, -1)), (1, 3, 6), (1, 4, 6)), ((3, 4),)),
    "bmm, shared expanded": (Use(lambda x, w: torch.bmm(x, w.expand(x.shape[0], -1, -1)), (1, 4, 6)), ((3, 4),)),
    "heads": (Use(lambda x, w: x.unsqueeze(1) @ w, (2, 4, 3)), ((5, 4),)),
    "einsum, linear": (Use(lambda x, w: torch.einsum("bi,oi->bo", x, w), (6, 4)), ((4,),)),
    "einsum, heads": (Use(lambda x, w: torch.einsum("btd,hde->bhte", x, w), (2, 4, 3)), ((5, 4),)),
    "einsum, per head": (Use(lambda x, w: torch.einsum("bhtd,hde->bhte", x, w), (2, 4, 3)), ((2, 5, 4),)),
    "einsum, dots": (Use(lambda x, w: torch.einsum("...i,io->...o", x, w), (4, 6)), ((3, 4),)),
    "einsum, diagonal of a transpose": (Use(lambda x, w: torch.einsum("bti,ti->bti", x, w.t()), (4, 4)), ((4, 4),)),
    "einsum, blocks of a transpose": (Use(lambda x, w: torch.einsum("bti,ti->bt", x, w.t()), (4, 4)), ((4, 4),)),
    "einsum, implicit": (Use(lambda x, w: torch.einsum("bi,io", x, w), (4, 6)), ((4,),)),
    "einsum, parameter first": (Use(lambda x, w: torch.einsum("oi,bi->bo", w, x), (6, 4)), ((4,),)),
    "einsum, three operands": (Use(lambda x, v, w: torch.einsum("bi,ij,jk->bk", x, v, w), (4, 3), (3, 2)), ((4,),)),
    "einsum, two data": (Use(lambda x, y, w: torch.einsum("bi,bj,ijk->bk", x, y, w), (4, 3, 2)), ((4,), (3,))),
    "tensordot": (Use(lambda x, w: torch.tensordot(x, w, 1), (4, 6)), ((3, 4),)),
    "bilinear": (nn.Bilinear(4, 3, 5), ((4,), (3,))),
    "bilinear, rank 3, no bias": (nn.Bilinear(4, 3, 5, bias=False), ((2, 4), (2, 3))),
    "prelu": (nn.PReLU(), ((3, 4),)),
    "prelu, channels": (nn.PReLU(3), ((3, 4),)),
    "prelu, rank 2": (nn.PReLU(4), ((4,),)),
    "scale": (Use(lambda x, s: x * s, ()), ((3, 4),)),
    "scale and shift": (Use(lambda x, s, t: torch.addcmul(t, x, s), (4,), (3, 1)), ((3, 4),)),
    "power": (Use(lambda x, p: x.abs().add(1) ** p, (4,)), ((4,),)),
    "in place": (Use(lambda x, s: x.sin().mul_(s).add_(s.exp()), (4,)), ((4,),)),
    "where": (Use(lambda x, s: torch.where(x > 0, x, s), (4,)), ((3, 4),)),
    "maximum": (Use(lambda x, s: torch.maximum(x, s), (4,)), ((3, 4),)),
    "masked fill": (Use(lambda x, s: x.masked_fill(x > 0, s), ()), ((3, 4),)),
    "parameter minus data": (Use(lambda x, s: 1 - (s - x) / s.exp(), (4,)), ((3, 4),)),
    "class token": (Use(lambda x, s: torch.cat([s.expand(x.shape[0], -1, -1), x], 1), (1, 1, 4)), ((3, 4),)),
    "class token, repeated": (Use(lambda x, s: torch.cat([s.repeat(x.shape[0], 1, 1), x], 1), (1, 2, 4)), ((3, 4),)),
    "stack": (Use(lambda x, s: torch.stack([x, s.expand_as(x)], 1), (4,)), ((4,),)),
    "computed weight": (Use(lambda x, v, g: F.linear(x, g * F.normalize(v)), (6, 4), (6, 1)), ((3, 4),)),
    "sum of two matrices": (Use(lambda x, v, w: F.linear(x, v + w), (6, 4), (6, 4)), ((3, 4),)),
    "low rank product": (Use(lambda x, v, w: F.linear(x, v @ w), (6, 2), (2, 4)), ((4,),)),
    "slices of one parameter": (Use(lambda x, w: F.linear(x, w[:3]) * F.linear(x, w[3:]), (6, 4)), ((3, 4),)),
    "overlapping slices": (Use(lambda x, w: F.linear(x, w[:4]) * F.linear(x, w[2:]), (6, 4)), ((3, 4),)),
    "both ways": (Use(lambda x, w: F.linear(F.linear(x, w).tanh(), w.t()), (6, 4)), ((3, 4),)),
    "half precision view of a row": (Use(lambda x, w: x * w[1], (3, 4)), ((4,),)),
    "softmax of a parameter": (Use(lambda x, w: x * w.softmax(0), (4,)), ((4,),)),
    "distance to prototypes": (Use(lambda x, w: torch.cdist(x, w), (6, 4)), ((3, 4),)),
    "attention over learned keys": (
        Use(
            lambda x, k, v: F.scaled_dot_product_attention(x, k.expand(len(x), -1, -1), v.expand(len(x), -1, -1)),
            (1, 5, 4), (1, 5, 4),
        ),
        ((3, 4),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(USES))
def test_direct_uses_of_a_parameter(agree: Any, name: str) -> None:
    module, shapes = USES[name]
    agree(module, *(torch.randn(B, *s) for s in shapes), reductions=("mean",))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda i, w: w[i], (6, 4)),
        (lambda i, w: w[i], (6, 2, 3)),
        (lambda i, w: w[i - 6], (6, 4)),
        (lambda i, w: w.index_select(0, i.flatten()).unflatten(0, i.shape), (6, 4)),
        (lambda i, w: torch.take_along_dim(w.expand(i.shape[0], -1), i, 1), (6,)),
        (lambda i, w: F.one_hot(i, 6).to(w.dtype) @ w, (6, 4)),
    ],
)
def test_lookups_without_an_embedding(agree: Any, function: Any, shape: tuple[int, ...]) -> None:
    agree(Use(function, shape), torch.randint(0, 6, (B, 3)))


class Attention(nn.Module):
    def __init__(self, need_weights: bool, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)
        self.need_weights = need_weights

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        out, _ = self.attention(q, k, v, key_padding_mask=mask, need_weights=self.need_weights)
        return out if self.attention.batch_first else out.transpose(0, 1)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": 5, "vdim": 6}, {"add_bias_kv": True, "add_zero_attn": True}]
)
def test_multihead_attention(agree: Any, need_weights: bool, options: dict[str, Any]) -> None:
    module = Attention(need_weights, batch_first=True, **options)
    q, k, v = torch.randn(B, 3, 8), torch.randn(B, 4, options.get("kdim", 8)), torch.randn(B, 4, options.get("vdim", 8))
    agree(module, q, k, v, reductions=("mean",))


def test_self_attention_with_padding(agree: Any) -> None:
    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention(False, batch_first=True)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.inner(x, x, x, mask)

    mask = torch.arange(4) >= torch.tensor([4, 3, 2, 1, 4]).unsqueeze(1)
    agree(Self(), torch.randn(B, 4, 8), mask)


def test_time_major_attention(agree: Any) -> None:
    x = torch.randn(3, B, 8)
    agree(Attention(True), x, x, x, batch_dim=1, dims=[1, 1, 1], batch=B)


RECURRENT: list[tuple[type[nn.Module], dict[str, Any]]] = [
    (kind, options)
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for options in (
        {},
        {"batch_first": True, "bias": False},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
    )
]
RECURRENT += [(nn.RNN, {"nonlinearity": "relu", "batch_first": True}), (nn.LSTM, {"proj_size": 2, "num_layers": 2})]


class Recurrent(nn.Module):
    """Uses both the outputs and the last states; optionally packs, optionally learns its first state."""

    def __init__(self, kind: type[nn.Module], packed: bool = False, learned: bool = False, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(3, 4, **options)
        self.packed = packed
        layers = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1)
        self.first = nn.Parameter(torch.randn(layers, 1, self.rnn.proj_size or 4)) if learned else None

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        first = self.rnn.batch_first
        x = x if first else x.transpose(0, 1)
        if self.packed:
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, first, enforce_sorted=False)
        if self.first is not None:
            state: Any = self.first.expand(-1, lengths.shape[0], -1)
            state = (state, state * 2) if isinstance(self.rnn, nn.LSTM) else state
            out, state = self.rnn(x, state)
        else:
            out, state = self.rnn(x)
        if self.packed:
            out, _ = nn.utils.rnn.pad_packed_sequence(out, first, total_length=6)
        out = out if first else out.transpose(0, 1)
        states = torch.cat(state, -1) if isinstance(state, tuple) else state
        return torch.cat([out.flatten(1), states.transpose(0, 1).flatten(1)], 1)


@pytest.mark.parametrize(("kind", "options"), RECURRENT)
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent(agree: Any, kind: type[nn.Module], options: dict[str, Any], packed: bool) -> None:
    lengths = torch.tensor([3, 6, 1, 6, 2])
    agree(Recurrent(kind, packed, **options), torch.randn(B, 6, 3), lengths, reductions=("mean",))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_with_a_learned_first_state(agree: Any, kind: type[nn.Module]) -> None:
    lengths = torch.tensor([3, 6, 1, 6, 2])
    for packed in (False, True):
        agree(
            Recurrent(kind, packed, learned=True, bidirectional=True),
            torch.randn(B, 6, 3),
            lengths,
            reductions=("sum",),
        )


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells_in_a_loop(agree: Any, kind: type[nn.Module]) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for t in range(x.shape[1]):
                state = self.cell(x[:, t], state)
            return state[0] if isinstance(state, tuple) else state

    agree(Loop(), torch.randn(B, 4, 3), reductions=("mean",))


def test_recurrent_matches_the_ordinary_forward_pass() -> None:
    from tacit import gradients

    for kind, options in RECURRENT:
        model = Recurrent(kind, True, **options)
        x, lengths = torch.randn(B, 6, 3), torch.tensor([3, 6, 1, 6, 2])
        wanted = model(x, lengths)
        with gradients.record(model):
            torch.testing.assert_close(model(x, lengths).as_subclass(Tensor), wanted)


@torch.library.custom_op("tacit_tests::linear", mutates_args=())
def own_linear(x: Tensor, weight: Tensor, bias: Tensor, scale: float) -> Tensor:
    return (x @ weight.t() + bias) * scale


def test_somebodys_own_operation_is_not_taken_for_the_one_of_that_name() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fixed, self.line = nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(torch.ops.tacit_tests.linear(x, self.fixed.weight, self.fixed.bias, 3.0))  # type: ignore[no-any-return]

    model, x = Model(), torch.randn(6, 4)
    plain = model(x)
    with gradients.record(model):
        assert torch.allclose(model(x).detach().as_subclass(Tensor), plain, atol=1e-5)
