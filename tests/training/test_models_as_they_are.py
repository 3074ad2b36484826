"""Models that others wrote, trained with `make_private` as their documentation shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit

SMALL: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sentences of different lengths, padded to eight words, with labels that ignore the padding."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(i)
        words = torch.randint(1, 30, (8,), generator=generator)
        mask = (torch.arange(8) < 3 + i % 6).long()
        return {
            "input_ids": words * mask,
            "attention_mask": mask,
            "labels": words.masked_fill(mask == 0, -100),
        }


def _train(model: nn.Module, **settings: Any) -> tacit.training.PrivateRun:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tacit.make_private(
        model, optimizer, Sentences(), lot_size=12, steps=2, clipping=1.0, noise_multiplier=1.0, **settings
    )
    for batch in run.batches():
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 2
    return run


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_causal_language_model_with_its_own_loss_and_a_padding_mask(checkpointing: bool) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    run = _train(model)
    assert run.engine.isolated == ()
    assert "a mean over the tokens of a batch counts as" in run.statement(1e-5)
    run.close()


def test_a_mixture_of_experts_is_followed_as_a_whole() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, num_local_experts=3)).train()
    run = _train(model)
    assert run.engine.isolated == ()
    run.close()


class Looks(nn.Module):
    """A module that decides by a value of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.square().sum()) < 1e9 else x.tanh()


def test_modules_that_run_one_example_at_a_time_are_in_the_statement() -> None:
    model = nn.Sequential(nn.Linear(3, 4), Looks(), nn.Linear(4, 2))
    data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randint(2, (40,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tacit.make_private(model, optimizer, data, lot_size=8, steps=2, clipping=1.0, noise_multiplier=1.0)
    for x, y in run.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert run.engine.isolated == ("1",)
    assert "Run one example at a time: 1." in run.statement(1e-5)
    run.close()


def test_adapters_of_peft_on_a_causal_language_model() -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, task_type="CAUSAL_LM")).train()
    run = _train(model)
    assert run.engine.isolated == () and all("lora" in name for name in run.engine.parameters)
    run.close()


class Penalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def test_a_gradient_penalty_in_the_loop_with_isolate() -> None:
    model = Penalised()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(40, 3))
    run = tacit.make_private(
        model, optimizer, data, lot_size=12, steps=2, clipping=1.0, noise_multiplier=1.0, isolate=True
    )
    for (x,) in run.batches():
        x = x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        ((slope.norm(dim=1) - 1).square() + out.square().squeeze(1)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 2 and run.engine.isolated == ("",)
    run.close()


def test_an_empty_lot_where_a_record_is_several_rows_is_a_step() -> None:
    """It was refused, after its charge."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randint(2, (8,)))
    run = tacit.make_private(
        model, optimizer, data, lot_size=1, steps=12, clipping=1.0, noise_multiplier=1.0, microbatch_size=2, seed=3
    )
    sizes = []
    for x, y in run.batches():
        sizes.append(len(x))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 12 and 0 in sizes
    run.close()
