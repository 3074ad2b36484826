"""Sequence-to-sequence models of `transformers`, with padded sources and labels that are -100 in the padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from zoo_models.cases import Batch, Case, add, own_loss, padded_words, without_dropout

T5 = dict(
    vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2, pad_token_id=0,
    eos_token_id=2, decoder_start_token_id=0,
)  # fmt: skip
BART = dict(
    vocab_size=64, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=2, forced_eos_token_id=None,
)  # fmt: skip

MODELS: dict[str, dict[str, Any]] = {
    "t5": T5,
    "mt5": T5 | dict(feed_forward_proj="gated-gelu"),
    "umt5": T5,
    "longt5": T5 | dict(local_radius=4, encoder_attention_type="local"),
    "switch_transformers": T5 | dict(num_experts=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
                                     expert_capacity=64, router_jitter_noise=0.0),
    "bart": BART,
    "mbart": BART,
    "pegasus": BART,
    "marian": BART | dict(decoder_vocab_size=64),
    "blenderbot": BART,
    "m2m_100": BART,
    "plbart": BART,
    "led": BART | dict(attention_window=[4, 4], max_encoder_position_embeddings=32, max_decoder_position_embeddings=32),
    "prophetnet": dict(vocab_size=64, hidden_size=16, num_encoder_layers=2, num_decoder_layers=2,
                       num_encoder_attention_heads=2, num_decoder_attention_heads=2, encoder_ffn_dim=24,
                       decoder_ffn_dim=24, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                       decoder_start_token_id=0, disable_ngram_loss=True),
}  # fmt: skip


def batch_of(kind: str, size: int, generator: torch.Generator) -> Batch:
    batch = padded_words(size, generator, longest=16 if kind == "led" else 10)
    target = padded_words(size, generator, longest=8, shortest=4)
    return batch | {"labels": target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)}


def case(kind: str) -> Case:
    import transformers

    config = without_dropout(transformers.AutoConfig.for_model(kind, **MODELS[kind]))
    return Case(transformers.AutoModelForSeq2SeqLM.from_config(config), partial(batch_of, kind), own_loss)


for each in MODELS:
    add("seq2seq", each, partial(case, each), token_mean=True)
