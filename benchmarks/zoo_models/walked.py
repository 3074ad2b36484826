"""Architectures of `transformers` in configurations that are made small by the names of their fields.

Nothing here was fitted to a model: what does not build in this way is left out.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

from zoo_models import walked_inputs as inputs
from zoo_models.cases import Case, add, no_dropout, own_loss, without_dropout

WIDTH, HEADS, VOCABULARY = 16, 2, 64
FIELDS: dict[int, str] = {
    0: """
        num_kv_shared_layers""",
    1: """
        n_group topk_group n_shared_experts mamba_n_groups first_k_dense_replace""",
    2: """
        num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers
        num_decoder_layers num_blocks depth encoder_num_layers decoder_num_hidden_layers num_attention_layers
        encoder_num_hidden_layers num_block num_dense_layers num_local_layers num_self_attends_per_block
        num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads
        num_key_value_heads attention_heads encoder_num_attention_heads decoder_num_attention_heads
        linear_num_key_heads linear_num_value_heads num_kv_heads num_self_attention_heads num_cross_attention_heads
        mamba_n_heads num_decoder_attention_heads num_encoder_attention_heads num_experts_per_tok moe_topk moe_k
        top_k_experts num_experts_per_token moe_top_k type_vocab_size index_n_heads mamba_num_heads num_codebooks
        num_conv_pos_embedding_groups""",
    3: """
        num_labels""",
    4: """
        num_experts num_local_experts n_routed_experts moe_num_experts qk_rope_head_dim qk_nope_head_dim rotary_dim
        mamba_d_state state_size mamba_dt_rank sliding_window index_topk num_latents num_conv_pos_embeddings
        prediction_length patch_length patch_stride num_frames""",
    5: """
        num_queries""",
    8: """
        head_dim attention_head_dim d_kv global_head_dim patch_size q_lora_rank kv_lora_rank v_head_dim
        linear_key_head_dim linear_value_head_dim index_head_dim chunk_size mamba_chunk_size num_mel_bins
        hidden_size_per_layer_input d_head conv_dim tdnn_dim xvector_output_dim classifier_proj_size""",
    12: """
        moe_intermediate_size expert_ffn_hidden_size""",
    16: """
        hidden_size d_model n_embd embed_dim dim emb_dim word_embed_proj_dim embedding_size lru_width hidden_dim
        projection_dim decoder_hidden_size attention_hidden_size encoder_hidden_size output_hidden_size
        out_hidden_size text_embed_dim encoder_hidden_dim hidden_channels d_latents q_dim kv_dim intermediate_dim
        mamba_d_head mamba_head_dim decoder_embed_dim context_length""",
    24: """
        intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner n_inner ffn_hidden_size dff
        shared_intermediate_size shared_expert_intermediate_size encoder_intermediate_size decoder_intermediate_size
        dim_feedforward encoder_mlp_dim decoder_mlp_dim block_ff_dim""",
    32: """
        image_size""",
    64: """
        vocab_size n_vocab max_position_embeddings n_positions max_seq_len max_target_positions max_source_positions
        vocab_size_per_layer_input max_2d_position_embeddings""",
}  # fmt: skip
"""What fields of a configuration become, by the names that `transformers` has for them."""

SIZES = {name: size for size, names in FIELDS.items() for name in names.split()}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def shrink(config: Any) -> Any:
    """Make a configuration small by the names of its fields, and those inside it."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            shrink(value)
        elif name in TOKENS and (value is not None or name == "pad_token_id"):
            setattr(config, name, TOKENS[name])
        elif name.endswith("_token_id") and isinstance(value, int) and value >= VOCABULARY:
            setattr(config, name, 3)
        elif name in SIZES and type(value) is int and value > SIZES[name]:
            setattr(config, name, SIZES[name])
        elif name in SIZES and type(value) in (list, tuple) and all(type(v) is int for v in value):
            setattr(config, name, type(value)(SIZES[name] for _ in value))
        elif name == "depths":
            setattr(config, name, [1] * len(value))
        elif name in ("hidden_sizes", "embed_dims", "neck_hidden_sizes") and isinstance(value, (list, tuple)):
            setattr(config, name, [WIDTH] * len(value))
    layers = getattr(config, "num_hidden_layers", None)
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "attention_layers"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, list) and isinstance(layers, int) and len(kinds) > layers:
            distinct = list(dict.fromkeys(kinds))
            setattr(config, name, (distinct + kinds)[:layers])
    return without_dropout(config)


def build(kind: str, class_name: str, **options: Any) -> nn.Module:
    """Build a small random model of this architecture."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = shrink(transformers.AutoConfig.for_model(kind))
        for name, value in options.items():
            setattr(config, name, value)
        cls = getattr(transformers, class_name)
        with torch.device("meta"):
            size = sum(p.numel() for p in cls(config).parameters())
        if size > 3_000_000:
            raise ValueError(f"{size} parameters")
        return no_dropout(cls(config))


CHOSEN: dict[str, tuple[str, str]] = {
    "CAUSAL_LM": ("causal", """
        afmoe apertus arcee aria_text bert-generation bigbird_pegasus bitnet cohere2 cohere2_moe cpmant deepseek_v4
        diffllama doge ernie4_5_moe exaone4 falcon_mamba flex_olmo gemma3n_text gemma4_text glm4_moe granitemoeshared
        helium jetmoe llama4_text minimax modernbert-decoder nanochat olmo3 olmo_hybrid phi4_multimodal qwen3_5_moe_text
        seed_oss trocr vaultgemma xlm-roberta-xl zaya"""),
    "SEQ_TO_SEQ_CAUSAL_LM": ("translate", "bigbird_pegasus blenderbot-small mvp nllb-moe pegasus_x t5gemma2"),
    "MASKED_LM": ("mask", "convbert deberta-v2 electra esmc longformer mobilebert mra nystromformer"),
    "SEQUENCE_CLASSIFICATION": ("sort", "biogpt gpt_neo jina_embeddings_v3 markuplm mra perceiver tapas"),
    "TOKEN_CLASSIFICATION": ("tag", "big_bird bloom funnel gpt2 longformer mpnet nystromformer roformer xlnet"),
    "QUESTION_ANSWERING": ("answer", "bart gptj nystromformer opt splinter squeezebert yoso"),
    "MULTIPLE_CHOICE": ("choose", "albert canine electra funnel roformer"),
    "NEXT_SENTENCE_PREDICTION": ("follow", "ernie fnet mobilebert"),
    "IMAGE_CLASSIFICATION": ("see", "dinov2_with_registers hiera ijepa metaclip_2 perceiver pvt pvt_v2"),
    "VIDEO_CLASSIFICATION": ("film", "timesformer videomae vivit"),
    "OBJECT_DETECTION": ("detect", "yolos"),
    "ZERO_SHOT_IMAGE_CLASSIFICATION": ("contrast", "altclip blip chinese_clip clipseg metaclip_2 tipsv2"),
}  # fmt: skip
"""Architectures by task of `transformers`, and the task's name here."""

TASKS: dict[str, tuple[Any, Any, bool]] = {
    "causal": (inputs.causal, own_loss, True),
    "translate": (inputs.translated, own_loss, True),
    "mask": (inputs.masked, own_loss, True),
    "sort": (inputs.classified, own_loss, False),
    "tag": (inputs.tagged, own_loss, True),
    "answer": (inputs.questioned, own_loss, False),
    "choose": (inputs.chosen, own_loss, False),
    "follow": (inputs.following, own_loss, False),
    "see": (inputs.seen, own_loss, False),
    "film": (inputs.filmed, own_loss, False),
    "detect": (inputs.detected, inputs.listed, False),
    "contrast": (inputs.paired, inputs.contrasted, False),
}
"""The batch of a task, its loss, and whether that is a mean over the tokens of the batch."""


def case(kind: str, mapping: str) -> Case:
    from transformers.models.auto import modeling_auto

    name = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")[kind]
    model = build(kind, name if isinstance(name, str) else name[0])
    batch, loss, _ = TASKS[CHOSEN[mapping][0]]
    return Case(model, partial(batch, model.config), loss)


for mapping, (task, kinds) in CHOSEN.items():
    for kind in kinds.split():
        family = "mixing" if task == "contrast" else "walked"
        add(family, f"{kind}-{task}-walked", partial(case, kind, mapping), honest=task != "contrast",
            token_mean=TASKS[task][2])  # fmt: skip
