"""Whole models against the one-example-at-a-time oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

B = 4


def classify(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out, target, reduction="none")


TARGET = torch.tensor([0, 2, 1, 2])


def test_mlp(agree: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(inplace=True), nn.Linear(20, 3))
    agree(model, torch.randn(B, 6), loss=classify, target=TARGET)


def test_cnn_of_abadi_2016(agree: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(54, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3),
    )  # fmt: skip
    agree(model, torch.randn(B, 3, 12, 12), loss=classify, target=TARGET)


def test_cnn_of_shokri_2015(agree: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3), nn.LogSoftmax(dim=1),
    )  # fmt: skip
    agree(model, torch.randn(B, 1, 16, 16), loss=lambda o, t: F.nll_loss(o, t, reduction="none"), target=TARGET)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, outputs), nn.GroupNorm(2, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        h += self.skip(x)
        return F.relu(h)


def test_resnet_with_group_norm(agree: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1),
        Residual(4, 4, 1),
        Residual(4, 8, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    agree(model, torch.randn(B, 3, 8, 8), loss=classify, target=TARGET)


class Encoder(nn.Module):
    def __init__(self, batch_first: bool = True, **options: Any) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.words, self.places = nn.Embedding(9, 8), nn.Embedding(B, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first, **options)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        if not self.batch_first:
            h = h.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=h.dtype)
        h = self.layers(h, mask=mask, is_causal=True)
        return self.head(h.mean(1 if self.batch_first else 0))


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": False}])
def test_transformer_encoder(agree: Any, options: dict[str, Any]) -> None:
    agree(Encoder(**options), torch.randint(0, 9, (B, B)), loss=classify, target=TARGET)


@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_decoder(agree: Any, batch_first: bool) -> None:
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = nn.TransformerDecoder(layer, 2)

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            out = self.decoder(x, memory)
            return out if batch_first else out.transpose(0, 1)

    dim = 0 if batch_first else 1
    shapes = [(B, 3, 8), (B, 5, 8)]
    x, memory = (torch.randn(*s).transpose(0, dim).contiguous() for s in shapes)
    agree(Decoder(), x, memory, batch=B, batch_dim=dim, dims=[dim, dim], reductions=("mean",))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_classifier(agree: Any, kind: type[nn.Module]) -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4, padding_idx=0)
            self.rnn = kind(4, 5, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(10, 3)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            out, _ = self.rnn(self.words(x))
            return self.head(out[torch.arange(x.shape[0]), lengths - 1])

    agree(Classifier(), torch.randint(0, 9, (B, 6)), torch.tensor([6, 1, 3, 2]), loss=classify, target=TARGET)


class LanguageModel(nn.Module):
    """Input and output embeddings share one matrix."""

    def __init__(self, tie: str) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 7)
        self.tie = tie
        if tie == "module":
            self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.mix(self.words(x)))
        if self.tie == "function":
            return F.linear(h, self.words.weight) + 0 * self.head(h)
        if self.tie == "transpose":
            return h @ self.words.weight.t()
        return self.head(h)


@pytest.mark.parametrize("tie", ["module", "function", "transpose"])
def test_tied_language_model_with_padding(agree: Any, tie: str) -> None:
    def loss(out: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(out.flatten(0, 1), target.flatten(), ignore_index=-1, reduction="none")
        return each.unflatten(0, target.shape).sum(1)

    target = torch.randint(0, 7, (B, 5))
    target[0, 2:] = -1
    target[3] = -1
    agree(LanguageModel(tie), torch.randint(0, 7, (B, 5)), loss=loss, target=target)


@pytest.mark.parametrize(("words", "steps"), [(7, 30), (300, 3)])
def test_tied_embeddings_with_and_without_forming_gradients(agree: Any, words: int, steps: int) -> None:
    """Both ways of taking the head's norm meet the looked-up rows; two lookups in the same table meet each other."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.words(x) + self.words(x.flip(1)))
            return F.linear(h, self.words.weight)

    agree(Tied(), torch.randint(0, words, (B, steps)), loss=lambda o, _: o.logsumexp(-1).sum(1), reductions=("mean",))


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


def test_lora(agree: Any) -> None:
    model = nn.Sequential(
        nn.Linear(4, 6).requires_grad_(False), nn.GELU(), LoRA(), nn.Linear(5, 3).requires_grad_(False)
    )
    agree(model, torch.randn(B, 3, 4))


def test_lora_merged_into_the_weight(agree: Any) -> None:
    class Merged(LoRA):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.base.weight + self.up @ self.down, self.base.bias)

    agree(Merged(), torch.randn(B, 3, 6))


def test_a_module_used_twice(agree: Any) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.convolution = nn.Linear(5, 5), nn.Conv1d(2, 2, 3, padding=1)
            self.norm = nn.LayerNorm(5)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.norm(torch.tanh(self.linear(self.convolution(x))))
            return x

    agree(Twice(), torch.randn(B, 2, 5))


def test_a_model_called_twice_for_one_loss(agree: Any) -> None:
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (self.net(x) - self.net(y)).pow(2)

    agree(Tower(), torch.randn(B, 4), torch.randn(B, 4))


def test_recording_a_model_called_twice_from_outside(compare: Any, naive: Any) -> None:

    from tacit import gradients

    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x, y = torch.randn(B, 4), torch.randn(B, 4)
    each = naive(model, lambda i: (model(x[i : i + 1]) - model(y[i : i + 1])).pow(2).sum(), B)
    with gradients.record(model) as tape:
        (model(x) - model(y)).pow(2).sum(1).mean().backward()
    compare(tape, each)


def test_pairs_joined_into_one_batch(agree: Any) -> None:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            a, b = self.net(torch.cat([x, y])).tanh().chunk(2)
            return a * b

    agree(Siamese(), torch.randn(B, 4), torch.randn(B, 4))


def test_parameters_used_directly(agree: Any) -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 1, 4))
            self.places = nn.Parameter(torch.randn(1, 4, 4))
            self.scale = nn.Parameter(torch.randn(()))
            self.unused = nn.Parameter(torch.randn(3))
            self.matrix = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
            return (x @ self.matrix).softmax(-1) * self.scale.exp()

    agree(Direct(), torch.randn(B, 3, 4))


def test_weight_normalisation(agree: Any) -> None:
    agree(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), torch.randn(B, 3, 4))


def test_gradient_checkpointing(agree: Any) -> None:
    class Saved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(lambda v: torch.tanh(self.a(v)), x, use_reentrant=False)
            return checkpoint(lambda v: torch.tanh(self.b(v)), x, use_reentrant=False)

    agree(Saved(), torch.randn(B, 3, 4))


def test_several_inputs_and_a_dict_of_outputs(agree: Any) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.text = nn.Conv2d(1, 2, 3), nn.Embedding(5, 8)

        def forward(self, batch: dict[str, Tensor], *, scale: Tensor) -> dict[str, Tensor]:
            image = self.image(batch["image"]).flatten(1)
            return {
                "logits": torch.cat([image, self.text(batch["text"]).sum(1)], 1) * scale.unsqueeze(1),
                "image": image,
            }

    batch = {"image": torch.randn(B, 1, 4, 4), "text": torch.randint(0, 5, (B, 3))}
    agree(
        Both(),
        batch,
        batch=B,
        kwargs={"scale": torch.randn(B)},
        loss=lambda o, _: o["logits"].sin().sum(1) + o["image"].mean(1),
    )


def test_tokens_picked_by_a_mask(agree: Any) -> None:
    """Rows of different examples in one tensor, in different numbers."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            rows = self.b(self.a(x)[mask].tanh())
            out = x.new_zeros(*mask.shape, 3)
            out[mask] = rows
            return out.sum(1)

    mask = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]]).bool()
    agree(Masked(), torch.randn(B, 3, 4), mask, reductions=("mean",))


def test_packed_sequence_as_input(compare: Any, naive: Any) -> None:

    from tacit import gradients

    model = nn.LSTM(3, 4)
    parts = [torch.randn(n, 3) for n in (2, 5, 1, 3)]
    packed = nn.utils.rnn.pack_sequence(parts, enforce_sorted=False)

    def loss(value: Any) -> Tensor:
        return value[1][0].sin().sum((0, 2))

    each = naive(model, lambda i: loss(model(nn.utils.rnn.pack_sequence([parts[i]]))).sum(), B)
    with gradients.record(model) as tape:
        loss(model(packed)).mean().backward()
    compare(tape, each)
