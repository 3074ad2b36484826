"""Code of `transformers` that looks at values, and what the engine computes in its place."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit import gradients
from tacit.gradients.libraries import data_independent

transformers = pytest.importorskip("transformers")
B, T = 4, 6
SIZES = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12)


def deberta(kind: str) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        **SIZES, max_position_embeddings=T, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        pooler_dropout=0.0, pooler_hidden_size=8, num_labels=3, relative_attention=True, pos_att_type=["c2p", "p2c"],
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForSequenceClassification")(config)  # type: ignore[no-any-return]


def switch() -> nn.Module:
    config = transformers.SwitchTransformersConfig(
        vocab_size=20, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_decoder_layers=2, num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1, num_heads=2, num_experts=3, expert_capacity=T, dropout_rate=0.0,
        decoder_start_token_id=0, router_jitter_noise=0.0, router_aux_loss_coef=0.0, router_z_loss_coef=0.0,
    )  # fmt: skip
    return transformers.SwitchTransformersForConditionalGeneration(config)  # type: ignore[no-any-return]


def masked() -> nn.Module:
    """A causal model whose mask depends on the kinds of the tokens, by a function of positions."""
    from transformers.masking_utils import create_causal_mask

    class Prefix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = transformers.LlamaConfig(**SIZES, attn_implementation="sdpa")
            self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
            h = self.embed(input_ids)

            def same(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                return (input_ids[batch, query] < 8) & (input_ids[batch, key] < 8)

            mask = create_causal_mask(self.config, h, torch.ones(input_ids.shape, dtype=torch.long), None,
                                      or_mask_function=same)  # fmt: skip
            h = nn.functional.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], attn_mask=mask)[:, 0]
            return nn.functional.cross_entropy(self.head(h.mean(1)), labels)

    return Prefix()


def words(several: bool) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 20, (B, T)), "labels": torch.randint(0, 3, (B, T) if several else (B,))}


CASES: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "deberta": (lambda: deberta("Deberta"), False),
    "deberta v2": (lambda: deberta("DebertaV2"), False),
    "switch transformers": (switch, True),
    "a mask that a function decides": (masked, False),
}


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    out = model(**batch)
    return out if isinstance(out, Tensor) else out.loss


@pytest.mark.parametrize("case", CASES)
def test_models_that_look_at_values_are_followed_and_exact(case: str, naive: Any, compare: Any) -> None:
    build, several = CASES[case]
    model = build()  # whose router is in single precision in any case
    untouched, batch = copy.deepcopy(model), words(several)
    if "deberta" in case:
        batch["labels"][1] = -1  # counts for nothing
    each = naive(untouched, lambda i: loss_of(untouched, {k: v[i : i + 1] for k, v in batch.items()}) + 0 * sum(
        p.sum() for p in untouched.parameters()), B)  # fmt: skip
    engine = gradients.attach(model)
    loss_of(model, batch).backward()
    compare(engine, each)
    assert engine.isolated == ()
    engine.detach()


def test_labels_that_do_not_count_are_left_out_as_debertas_own_loss_does() -> None:
    model, batch = deberta("DebertaV2"), words(False)
    batch["labels"][1] = -1
    expected = model(**batch).loss
    with data_independent.paths():
        found = model(**batch)
    assert torch.allclose(found.loss, expected) and found.logits.shape == (B, 3)


def test_a_forward_that_is_replaced_keeps_the_names_of_its_arguments() -> None:
    """Trainers leave out the columns of a data set that the model's forward does not name."""
    model = deberta("DebertaV2")
    data_independent.prepare()
    assert {"input_ids", "labels"} <= set(inspect.signature(model.forward).parameters)


def test_a_loss_of_deberta_over_pairs_of_examples_is_refused() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = deberta("DebertaV2")
            nn.init.normal_(self.net.classifier.weight, std=5)

        def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
            out = self.net(input_ids=input_ids, labels=labels)
            return out.loss + (out.logits @ out.logits.mT).square().mean()  # type: ignore[no-any-return]

    engine = gradients.attach(model := Pairs())
    with pytest.raises(ValueError):
        model(**words(False)).backward()
    engine.detach()


class Weighed(nn.Module):
    """Uses the hidden states of all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = transformers.LlamaModel(transformers.LlamaConfig(**SIZES))

    def forward(self, input_ids: Tensor) -> Tensor:
        first, last = self.net(input_ids, output_hidden_states=True).hidden_states
        return (first + last).mean(1)


def test_copies_of_a_model_that_ran_before_have_its_hidden_states(caplog: pytest.LogCaptureFixture) -> None:
    model, ids = Weighed(), words(False)["input_ids"]
    model(ids)  # which sets hooks, and notes that they are set
    engine = gradients.attach(model)
    model(ids).square().sum(1).mean().backward()
    assert engine.isolated == () and not [r for r in caplog.records if r.name.startswith("tacit")]
    engine.detach()


class Checked(nn.Module):
    """Puts features in the place of marked words, and checks that there are as many of one as of the other."""

    def __init__(self, leak: bool) -> None:
        super().__init__()
        self.embed, self.features, self.head, self._leak = nn.Embedding(20, 8), nn.Linear(3, 8), nn.Linear(8, 3), leak

    def forward(self, input_ids: Tensor, images: Tensor) -> Tensor:
        from transformers.utils import torch_compilable_check

        h, features, marked = self.embed(input_ids), self.features(images), input_ids == 3
        count = marked.sum()
        torch_compilable_check(
            h[marked].numel() == features.numel(), f"{count} places for {features.shape[0]} features"
        )
        if self._leak and str(f"{count}") == "4":
            h = h * 2
        h = h.masked_scatter(marked.unsqueeze(-1), features)
        return self.head(h.mean(1))


@pytest.mark.parametrize("leak", [False, True])
def test_a_check_of_counts_does_not_stand_in_the_way(leak: bool, naive: Any, compare: Any) -> None:
    """The text of its error may name a count, which nobody reads otherwise; a count that decides is a value read."""
    model = Checked(leak)
    ids = torch.randint(4, 20, (B, T)).index_put((torch.arange(B), torch.randint(0, T, (B,))), torch.tensor(3))
    images = torch.randn(B, 3)
    each = naive(model, lambda i: model(ids[i : i + 1], images[i : i + 1]).square().mean(), B)
    engine = gradients.attach(model)
    if leak:
        with pytest.raises((ValueError, RuntimeError)):
            model(ids, images).square().mean().backward()
    else:
        model(ids, images).square().mean().backward()
        compare(engine, each)
        assert engine.isolated == ()
        engine.discard()
        other = ids.clone()
        other[:2] = 4
        other[1, :2] = 3
        with pytest.raises(ValueError, match="combines different examples"):  # the first one's feature is the second's
            model(other, images).square().mean().backward()
    engine.detach()
