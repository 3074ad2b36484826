"""Models of other packages, as they come: PEFT adapters, Hugging Face transformers, compiled models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import gradients

B, T = 4, 6


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()).tanh())


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"bias": "lora_only", "use_rslora": True}])
def test_adapters_of_peft(agree: Callable[..., None], options: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["first", "second"], modules_to_save=["head"], **options)
    model = peft.get_peft_model(Classifier(), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first, which would hide the gradients of lora_A
            nn.init.normal_(parameter)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("lora_A" in name for name in trained)
    assert not any("base_layer.weight" in name for name in trained)
    agree(model, torch.randn(B, 5))


def _bert(attention: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=T, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)  # type: ignore[no-any-return]


def _gpt2(attention: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=T, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        use_cache=False, attn_implementation=attention,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def _each(out: Any, target: Tensor) -> Tensor:
    if out.logits.ndim == 2:
        return F.cross_entropy(out.logits, target[:, 0] % 3, reduction="none")
    return F.cross_entropy(out.logits.transpose(1, 2), target, reduction="none").mean(1)


def _padded() -> Tensor:
    """Which words count: the second example is shorter."""
    mask = torch.ones(B, T, dtype=torch.long)
    mask[1, 4:] = 0
    return mask


@pytest.mark.parametrize("build", [_bert, _gpt2])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("masked", [False, True])
def test_transformers_of_hugging_face(
    agree: Any, build: Callable[[str], nn.Module], attention: str, masked: bool
) -> None:
    """Tied embeddings, position tables, the package's own Conv1D; with padding as a mask [batch, 1, words, words]."""
    words = torch.randint(0, 20, (B, T))
    whole = (1.0 - _padded()[:, None, None, :].expand(B, 1, T, T)) * -1e4
    kwargs = {"attention_mask": whole} if masked else {}
    agree(build(attention), words, loss=_each, target=words, dtypes=[torch.float64], kwargs=kwargs)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("build", [_bert, _gpt2])
def test_two_dimensional_padding_masks_are_followed(
    agree: Any, build: Callable[[str], nn.Module], attention: str
) -> None:
    """The package would ask whether any example has padding, and decide for all; in a followed pass it does not."""
    words = torch.randint(0, 20, (B, T))
    kwargs = {"attention_mask": _padded()}
    agree(build(attention), words, loss=_each, target=words, dtypes=[torch.float64], kwargs=kwargs)


def test_the_data_independent_paths_of_transformers_are_taken_in_followed_passes_only() -> None:
    is_tracing = pytest.importorskip("transformers.utils.import_utils").is_tracing
    asked = []

    class Asking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            asked.append(is_tracing(x))
            return super().forward(x)

    model = nn.Sequential(Asking(4, 3))
    x = torch.randn(B, 4)
    with gradients.record(model):
        model(x).sum().backward()
        with torch.no_grad():
            model(x)
    model(x)
    assert asked[-3:] == [True, False, False] and not is_tracing(x)


@pytest.mark.parametrize("way", ["wrapped", "in place", "a part"])
def test_compiled_models_run_uncompiled(naive: Any, compare: Any, way: str) -> None:
    model: nn.Module = Classifier()
    x = torch.randn(B, 5)
    want = naive(model, lambda i: model(x[i : i + 1]).square().sum(), B)
    if way == "wrapped":
        used = torch.compile(model, backend="eager")
    else:
        used = nn.Sequential(model) if way == "a part" else model
        model.compile(backend="eager")
    call = vars(model).get("_compiled_call_impl")
    with gradients.record(used) as tape:
        used(x).square().sum().backward()
    prefix = {"wrapped": "_orig_mod.", "in place": "", "a part": "0."}[way]
    compare(tape, {f"{prefix}{name}": grads for name, grads in want.items()})
    assert vars(model).get("_compiled_call_impl") is call


@pytest.mark.parametrize("way", ["wrapped", "in place"])
def test_models_compiled_after_attaching_run_uncompiled_until_detached(naive: Any, compare: Any, way: str) -> None:
    model, compiled = Classifier(), list[Any]()

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    engine = gradients.attach(model)
    used: Any = torch.compile(model, backend=backend) if way == "wrapped" else model
    if way == "in place":
        model.compile(backend=backend)
    for size in (B, B + 2):
        x = torch.randn(size, 5)
        used(x).square().sum().backward()
        found = engine.norms()
        engine.discard()
        engine.detach()
        torch.compiler.reset()
        plain = copy.deepcopy(model)
        vars(plain).pop("_compiled_call_impl", None)
        each = naive(plain, lambda i, x=x, m=plain: m(x[i : i + 1]).square().sum(), size)
        total = torch.stack([g.reshape(size, -1).norm(dim=1) for g in each.values()]).norm(dim=0)
        torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-6)
        assert not compiled
        engine = gradients.attach(model)
        if way == "in place":
            model.compile(backend=backend)
    engine.detach()
    used(torch.randn(B, 5))
    fresh = list[Any]()
    torch.compile(nn.Linear(5, 2), backend=lambda graph, _: fresh.append(graph) or graph.forward)(torch.randn(B, 5))
    assert bool(compiled) is bool(fresh)  # the compiler does nothing at all under a function mode of another test
    torch.compiler.reset()


def test_a_model_compiled_after_attaching_that_mixes_examples_is_refused() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(x - x.mean(0))

    model = Centred()
    engine = gradients.attach(model)
    used = torch.compile(model, backend="eager")
    with pytest.raises(ValueError, match="whole batch"):
        used(torch.randn(B, 4)).square().sum().backward()
    engine.detach()


@pytest.mark.parametrize("mixes", [False, True])
def test_a_compiled_function_is_followed(mixes: bool) -> None:
    compiled = torch.compile(lambda x: x - x.mean(0 if mixes else 1, keepdim=True), backend="eager")

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(compiled(x))

    model = Centred()
    if mixes:
        with pytest.raises(ValueError, match="whole batch"), gradients.record(model):
            model(torch.randn(B, 4)).sum().backward()
        return
    with gradients.record(model) as tape:
        model(torch.randn(B, 4)).sum().backward()
    assert len(tape.norms()) == B


@pytest.mark.slow
def test_a_compiled_function_inside_a_model(naive: Any) -> None:
    """Whatever the compiler makes of tensors of the batch, every batch's gradients are right."""
    compiled = torch.compile(lambda x, weight: torch.tanh(x @ weight), backend="aot_eager")

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight, self.last = nn.Linear(5, 5), nn.Parameter(torch.randn(5, 5)), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(compiled(self.first(x), self.weight))

    model = Hidden()
    engine = gradients.attach(model)
    for batch in (B, B, B + 3):
        x, y = torch.randn(batch, 5), torch.randint(0, 3, (batch,))
        F.cross_entropy(model(x), y).backward()
        found = engine.norms()
        engine.discard()
        engine.detach()
        each = naive(model, lambda i, x=x, y=y: F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), batch)
        total = torch.stack([g.reshape(batch, -1).norm(dim=1) for g in each.values()]).norm(dim=0)
        torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-6)
        engine = gradients.attach(model)
    engine.detach()
