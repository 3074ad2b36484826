"""Text encoders of `transformers`: classification, tagging, masked words, questions, all with padded masks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from zoo_models.cases import Batch, Case, add, classes, own_loss, padded_words, without_dropout

BERT = dict(
    vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=40, type_vocab_size=2, pad_token_id=0, num_labels=3,
)  # fmt: skip
ROBERTA = BERT | dict(pad_token_id=1, type_vocab_size=1)
XLM = dict(vocab_size=64, emb_dim=16, n_layers=2, n_heads=2, max_position_embeddings=32, num_labels=3, pad_index=0,
           n_langs=1, pad_token_id=0)  # fmt: skip

MODELS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": dict(vocab_size=64, dim=16, hidden_dim=24, n_layers=2, n_heads=2, max_position_embeddings=32,
                       num_labels=3, pad_token_id=0),
    "albert": BERT | dict(embedding_size=8, num_hidden_groups=1),
    "electra": BERT | dict(embedding_size=8),
    "deberta": BERT | dict(relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16,
                           position_biased_input=False),
    "deberta-v2": BERT | dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8,
                              max_relative_positions=16, position_biased_input=False),
    "xlnet": dict(vocab_size=64, d_model=16, n_layer=2, n_head=2, d_inner=24, num_labels=3, pad_token_id=0),
    "mpnet": ROBERTA,
    "camembert": ROBERTA,
    "xlm-roberta": ROBERTA,
    "xlm": XLM,
    "flaubert": XLM,
    "longformer": ROBERTA | dict(attention_window=[4, 4]),
    "big_bird": BERT | dict(attention_type="original_full"),
    "funnel": dict(vocab_size=64, d_model=16, n_head=2, d_head=8, d_inner=24, block_sizes=[1, 1], num_labels=3,
                   pad_token_id=0),
    "convbert": BERT | dict(embedding_size=8, head_ratio=1, conv_kernel_size=3),
    "squeezebert": BERT | dict(embedding_size=16, q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1,
                               intermediate_groups=2, output_groups=2),
    "fnet": dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, intermediate_size=24, max_position_embeddings=32,
                 type_vocab_size=2, pad_token_id=0, num_labels=3),
    "mobilebert": BERT | dict(embedding_size=8, intra_bottleneck_size=8, true_hidden_size=8,
                              normalization_type="no_norm"),
    "layoutlm": BERT | dict(max_2d_position_embeddings=32),
    "ernie": BERT,
    "nystromformer": BERT | dict(num_landmarks=10, segment_means_seq_len=10, conv_kernel_size=3),
    "roformer": BERT | dict(embedding_size=16),
    "yoso": BERT | dict(use_expectation=True),
    "canine": BERT | dict(local_transformer_stride=4, downsampling_rate=2, num_hash_buckets=16, num_hash_functions=2,
                          upsampling_kernel_size=2),
    "ibert": ROBERTA | dict(quant_mode=False),
    "megatron-bert": BERT,
    "modernbert": BERT | dict(local_attention=4, global_attn_every_n_layers=2, cls_token_id=5, sep_token_id=6,
                              bos_token_id=5, eos_token_id=6, reference_compile=False),
    "rembert": BERT | dict(input_embedding_size=8, output_embedding_size=8),
    "data2vec-text": ROBERTA,
    "esm": ROBERTA | dict(position_embedding_type="rotary", mask_token_id=4, token_dropout=True),
    "roberta-prelayernorm": ROBERTA,
    "gpt2": dict(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32, pad_token_id=0, num_labels=3),
    "eurobert": BERT | dict(num_key_value_heads=2, bos_token_id=5, eos_token_id=6, mask_token_id=4),
    "nomic_bert": BERT,
    "gte": BERT,
}  # fmt: skip

UNMASKED = ("fnet",)
BY_LENGTH = {"longformer": 16, "canine": 16, "funnel": 12}
"""Sequences of a length that the model's windows divide."""


def words(kind: str, size: int, generator: torch.Generator) -> Batch:
    batch: Batch = padded_words(
        size, generator, longest=BY_LENGTH.get(kind, 10), pad=MODELS[kind].get("pad_token_id", 0)
    )
    if kind in UNMASKED:
        del batch["attention_mask"]
    if kind == "layoutlm":
        corner = torch.randint(0, 10, (*batch["input_ids"].shape, 2), generator=generator)
        batch["bbox"] = torch.cat([corner, corner + 5], 2)
    return batch


def classified(kind: str, size: int, generator: torch.Generator) -> Batch:
    return words(kind, size, generator) | {"labels": classes(size, 3, generator)}


def tagged(kind: str, size: int, generator: torch.Generator) -> Batch:
    batch = words(kind, size, generator)
    tags = torch.randint(0, 3, batch["input_ids"].shape, generator=generator)
    return batch | {"labels": tags.masked_fill(batch["attention_mask"] == 0, -100)}


def masked(kind: str, size: int, generator: torch.Generator) -> Batch:
    """Hide about a third of the words; the labels are -100 everywhere else."""
    batch = words(kind, size, generator)
    hidden = torch.rand(batch["input_ids"].shape, generator=generator) < 0.35
    hidden[:, 1] = True
    hidden &= batch["attention_mask"] == 1
    labels = batch["input_ids"].masked_fill(~hidden, -100)
    return batch | {"input_ids": batch["input_ids"].masked_fill(hidden, 4), "labels": labels}


def questioned(kind: str, size: int, generator: torch.Generator) -> Batch:
    batch = words(kind, size, generator)
    return batch | {"start_positions": classes(size, 3, generator), "end_positions": classes(size, 3, generator) + 2}


def scored(kind: str, size: int, generator: torch.Generator) -> Batch:
    return words(kind, size, generator) | {"labels": torch.rand(size, generator=generator)}


def several(kind: str, size: int, generator: torch.Generator) -> Batch:
    return words(kind, size, generator) | {"labels": torch.randint(0, 2, (size, 3), generator=generator).float()}


def chosen(kind: str, size: int, generator: torch.Generator) -> Batch:
    flat = words(kind, 2 * size, generator)
    return {k: v.unflatten(0, (size, 2)) for k, v in flat.items()} | {"labels": classes(size, 2, generator)}


TASKS: dict[str, tuple[str, Any]] = {
    "classify": ("AutoModelForSequenceClassification", classified),
    "tag": ("AutoModelForTokenClassification", tagged),
    "mask": ("AutoModelForMaskedLM", masked),
    "answer": ("AutoModelForQuestionAnswering", questioned),
    "choose": ("AutoModelForMultipleChoice", chosen),
    "score": ("AutoModelForSequenceClassification", scored),
    "several": ("AutoModelForSequenceClassification", several),
}


def encoder(kind: str, task: str = "classify", **options: Any) -> nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **(MODELS[kind] | options))
    return getattr(transformers, TASKS[task][0]).from_config(without_dropout(config))


def case(kind: str, task: str, **options: Any) -> Case:
    return Case(encoder(kind, task, **options), partial(TASKS[task][1], kind), own_loss)


STATEFUL = frozenset(["ibert"])
"""Models whose buffers keep statistics of the data from batch to batch (ranges of activations): to be refused."""

for each in MODELS:
    add("encoder", f"{each}-classify", partial(case, each, "classify"), honest=each not in STATEFUL)
for each in ("bert", "roberta", "distilbert", "electra", "deberta-v2"):
    add("encoder", f"{each}-tag", partial(case, each, "tag"), token_mean=True)
for each in ("bert", "roberta", "albert", "distilbert", "modernbert"):
    add("encoder", f"{each}-mask", partial(case, each, "mask"), token_mean=True)
add("encoder", "bert-answer", partial(case, "bert", "answer", num_labels=2))
add("encoder", "bert-choose", partial(case, "bert", "choose"))
add("encoder", "bert-score", partial(case, "bert", "score", num_labels=1))
add("encoder", "bert-several", partial(case, "bert", "several", problem_type="multi_label_classification"))
add("encoder", "bert-eager", partial(case, "bert", "classify", attn_implementation="eager"))
