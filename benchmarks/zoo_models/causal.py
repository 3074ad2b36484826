"""Causal language models of `transformers`, trained on their own loss with padding ignored in the labels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from zoo_models.cases import Batch, Case, add, own_loss, padded_words, without_dropout

LLAMA = dict(
    vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
GROUPED = LLAMA | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=4)
EXPERTS = GROUPED | dict(num_experts_per_tok=2)
GPT = dict(
    vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2
)
PLAIN = dict(
    vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "openai-gpt": GPT | dict(n_positions=32),
    "gpt_neo": dict(
        vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]],
        window_size=4, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    ),
    "gptj": GPT | dict(rotary_dim=4),
    "codegen": GPT | dict(rotary_dim=4, n_head=4),
    "gpt_bigcode": GPT,
    "gpt_neox": PLAIN,
    "opt": PLAIN | dict(ffn_dim=24, word_embed_proj_dim=16),
    "bloom": dict(vocab_size=64, hidden_size=16, n_layer=2, n_head=2, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "mpt": dict(vocab_size=64, d_model=16, n_layers=2, n_heads=2, max_seq_len=32, pad_token_id=0),
    "falcon": dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0,
                   bos_token_id=1, eos_token_id=2),
    "xglm": dict(vocab_size=64, d_model=16, ffn_dim=24, num_layers=2, attention_heads=2, max_position_embeddings=32,
                 pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "biogpt": PLAIN,
    "ctrl": dict(vocab_size=64, n_embd=16, dff=24, n_layer=2, n_head=2, n_positions=32, pad_token_id=0),
    "llama": LLAMA,
    "mistral": GROUPED,
    "mixtral": EXPERTS | dict(num_local_experts=4),
    "qwen2": GROUPED,
    "qwen2_moe": EXPERTS | dict(num_experts=4, moe_intermediate_size=12, shared_expert_intermediate_size=12),
    "qwen3": GROUPED,
    "qwen3_moe": EXPERTS | dict(num_experts=4, moe_intermediate_size=12, decoder_sparse_step=1),
    "olmoe": GROUPED | dict(num_experts=4, num_experts_per_tok=2),
    "phi": LLAMA,
    "phi3": LLAMA,
    "gemma": GROUPED,
    "gemma2": GROUPED | dict(sliding_window=4),
    "gemma3_text": GROUPED | dict(sliding_window=4, layer_types=["sliding_attention", "full_attention"]),
    "stablelm": LLAMA,
    "olmo": LLAMA,
    "olmo2": LLAMA,
    "starcoder2": GROUPED,
    "cohere": GROUPED,
    "granite": GROUPED,
    "granitemoe": GROUPED | dict(num_local_experts=4, num_experts_per_tok=2),
    "smollm3": GROUPED,
    "nemotron": GROUPED,
    "persimmon": LLAMA,
    "gpt_oss": EXPERTS | dict(num_local_experts=4, sliding_window=4,
                              layer_types=["sliding_attention", "full_attention"]),
    "deepseek_v3": LLAMA | dict(
        moe_intermediate_size=12, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2,
        first_k_dense_replace=1, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8,
        n_shared_experts=1,
    ),
    "mamba": dict(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2, pad_token_id=0, bos_token_id=1,
                  eos_token_id=2),
    "mamba2": dict(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2, num_heads=4, head_dim=8,
                   n_groups=1, chunk_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "jamba": GROUPED | dict(
        num_experts=2, num_experts_per_tok=1, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
        expert_layer_offset=1, mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False,
    ),
    "rwkv": dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16, intermediate_size=24,
                 context_length=32, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "recurrent_gemma": GROUPED | dict(lru_width=16, attention_window_size=8,
                                      block_types=["recurrent", "attention"]),
    "xlstm": dict(vocab_size=64, hidden_size=16, embedding_dim=16, num_blocks=2, num_hidden_layers=2, num_heads=2,
                  chunk_size=5, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_cache=False, mode="train"),
    "lfm2": GROUPED | dict(layer_types=["conv", "full_attention"]),
    "qwen3_next": EXPERTS | dict(
        num_experts=4, moe_intermediate_size=12, shared_expert_intermediate_size=12, linear_num_key_heads=2,
        linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
}  # fmt: skip

UNMASKED = ("rwkv", "xlstm")
"""Models whose forward takes no attention mask: padding stands at the end, after all words that matter."""


def batch_of(size: int, generator: torch.Generator, masked: bool = True) -> Batch:
    """Draw padded sequences with labels: the words themselves, and -100 in the padding."""
    batch = padded_words(size, generator)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    if not masked:
        del batch["attention_mask"]
    return batch


def causal_model(kind: str, **options: Any) -> nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **(MODELS[kind] | options))
    return transformers.AutoModelForCausalLM.from_config(without_dropout(config))


def case(kind: str) -> Case:
    return Case(causal_model(kind), partial(batch_of, masked=kind not in UNMASKED), own_loss)


def whole_length(size: int, generator: torch.Generator) -> Batch:
    words = torch.randint(5, 64, (size, 8), generator=generator)
    return {"input_ids": words, "labels": words.clone()}


def unpadded() -> Case:
    """Blocks of equal length without a mask, as `run_clm.py` groups its texts."""
    return Case(causal_model("gpt2"), whole_length, own_loss)


def checkpointed() -> Case:
    model = causal_model("llama")
    model.gradient_checkpointing_enable()
    return Case(model, batch_of, own_loss)


def left_padded(size: int, generator: torch.Generator) -> Batch:
    return {name: value.flip(1) for name, value in batch_of(size, generator).items()}


def scored() -> Case:
    """A language model with a classification head, which looks for the last word before the padding."""
    import transformers

    config = transformers.AutoConfig.for_model("llama", **LLAMA, num_labels=3)
    model = transformers.AutoModelForSequenceClassification.from_config(without_dropout(config))

    def batch(size: int, generator: torch.Generator) -> Batch:
        return padded_words(size, generator) | {"labels": torch.randint(0, 3, (size,), generator=generator)}

    return Case(model, batch, own_loss)


for each in MODELS:
    add("causal", each, partial(case, each), token_mean=True)
add("causal", "gpt2-blocks", unpadded)
add("causal", "llama-checkpointing", checkpointed, token_mean=True)
add("causal", "llama-left-padding", lambda: Case(causal_model("llama"), left_padded, own_loss), token_mean=True)
add("causal", "llama-eager", lambda: Case(causal_model("llama", attn_implementation="eager"), batch_of, own_loss),
    token_mean=True)  # fmt: skip
add("causal", "llama-no-cache", lambda: Case(causal_model("llama", use_cache=False), batch_of, own_loss),
    token_mean=True)  # fmt: skip
add("causal", "llama-classifier", scored)
