"""Adapters of `peft` on a causal language model and on an encoder."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any

import torch
from torch import nn

from zoo_models import causal, encoders
from zoo_models.cases import Batch, Case, add, own_loss

ATTENTION = ["q_proj", "v_proj"]
SQUARE = ["q_proj", "o_proj"]
PROMPTS = dict(num_virtual_tokens=3, num_attention_heads=2, num_layers=2, token_dim=16, num_transformer_submodules=1)

ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("LoraConfig", dict(r=4, target_modules=ATTENTION)),
    "lora-all-linear": ("LoraConfig", dict(r=4, target_modules="all-linear")),
    "lora-embedding": ("LoraConfig", dict(r=4, target_modules=["embed_tokens", "q_proj"])),
    "lora-bias": ("LoraConfig", dict(r=4, target_modules=ATTENTION, bias="all", use_rslora=True)),
    "lora-saved-head": ("LoraConfig", dict(r=4, target_modules=ATTENTION, modules_to_save=["lm_head"])),
    "dora": ("LoraConfig", dict(r=4, target_modules=ATTENTION, use_dora=True)),
    "adalora": ("AdaLoraConfig", dict(init_r=4, target_r=2, total_step=10, target_modules=ATTENTION)),
    "ia3": ("IA3Config", dict(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])),
    "prefix": ("PrefixTuningConfig", PROMPTS),
    "prefix-projection": ("PrefixTuningConfig", PROMPTS | dict(prefix_projection=True, encoder_hidden_size=8)),
    "prompt": ("PromptTuningConfig", PROMPTS),
    "p-tuning": ("PromptEncoderConfig", PROMPTS | dict(encoder_hidden_size=8)),
    "p-tuning-lstm": (
        "PromptEncoderConfig", PROMPTS | dict(encoder_hidden_size=8, encoder_reparameterization_type="LSTM"),
    ),
    "adaption-prompt": ("AdaptionPromptConfig", dict(adapter_len=3, adapter_layers=1)),
    "oft": ("OFTConfig", dict(oft_block_size=4, target_modules=SQUARE)),
    "boft": ("BOFTConfig", dict(boft_block_size=4, target_modules=SQUARE)),
    "vera": ("VeraConfig", dict(r=4, target_modules=SQUARE)),
    "ln-tuning": ("LNTuningConfig", dict(target_modules=["input_layernorm", "norm"])),
    "loha": ("LoHaConfig", dict(r=4, target_modules=ATTENTION)),
    "lokr": ("LoKrConfig", dict(r=4, target_modules=ATTENTION)),
    "hra": ("HRAConfig", dict(r=4, target_modules=ATTENTION)),
    "fourierft": ("FourierFTConfig", dict(n_frequency=20, target_modules=ATTENTION)),
    "miss": ("MissConfig", dict(r=4, target_modules=ATTENTION)),
    "randlora": ("RandLoraConfig", dict(r=4, target_modules=SQUARE)),
    "shira": ("ShiraConfig", dict(r=4, target_modules=ATTENTION)),
    "c3a": ("C3AConfig", dict(block_size=8, target_modules=SQUARE)),
    "road": ("RoadConfig", dict(variant="road_1", group_size=8, target_modules=SQUARE)),
    "trainable-tokens": ("TrainableTokensConfig", dict(token_indices=[6, 7, 8, 9])),
    "vblora": ("VBLoRAConfig", dict(r=2, num_vectors=8, vector_length=4, topk=2, target_modules=SQUARE)),
    "delora": ("DeloraConfig", dict(r=4, target_modules=ATTENTION)),
    "adamss": ("AdamssConfig", dict(r=4, num_subspaces=2, target_modules=ATTENTION)),
    "beft": ("BeftConfig", dict(target_modules=["v_proj"])),
    "frod": ("FrodConfig", dict(progressbar=False, target_modules=SQUARE)),
    "glora": ("GloraConfig", dict(r=4, target_modules=ATTENTION)),
    "unilora": ("UniLoraConfig", dict(r=2, theta_d_length=32, target_modules=ATTENTION)),
    "cpt": ("CPTConfig", dict(cpt_token_ids=[6, 7, 8], cpt_mask=[1, 1, 1], cpt_tokens_type_mask=[1, 2, 4])),
    "hira": ("HiraConfig", dict(r=4, target_modules=ATTENTION)),
    "waveft": ("WaveFTConfig", dict(n_frequency=20, target_modules=ATTENTION)),
    "osf": ("OSFConfig", dict(effective_rank=4, target_modules=SQUARE)),
    "gralora": ("GraloraConfig", dict(r=4, target_modules=ATTENTION)),
    "gralora-hybrid": ("GraloraConfig", dict(r=4, hybrid_r=2, target_modules=ATTENTION)),
    "cartridge": ("CartridgeConfig", PROMPTS | dict(num_virtual_tokens=4, num_frozen_tokens=1)),
    "tinylora": ("TinyLoraConfig", dict(r=2, u=8, target_modules=ATTENTION)),
    "tinylora-tied": ("TinyLoraConfig", dict(r=2, u=8, weight_tying=1.0, target_modules=ATTENTION)),
    "psoft": ("PsoftConfig", dict(r=4, target_modules=SQUARE)),
    "psoft-neumann": ("PsoftConfig", dict(r=4, use_cayley_neumann=True, target_modules=SQUARE)),
    "peanut": ("PeanutConfig", dict(r=4, depth=1, target_modules=ATTENTION)),
    "shadow": ("ShadowConfig", dict(r=4, shadow_dropout=0.0)),
    "supertuning": ("SupertuningConfig", dict(sparsity=0.9, target_modules=ATTENTION)),
    "deft": ("DeftConfig", dict(r=4, target_modules=ATTENTION)),
    "deft-para": ("DeftConfig", dict(r=4, para=True, target_modules=ATTENTION)),
    "pissa": ("LoraConfig", dict(r=4, init_lora_weights="pissa", target_modules=ATTENTION)),
    "olora": ("LoraConfig", dict(r=4, init_lora_weights="olora", target_modules=ATTENTION)),
    "lora-parameters": ("LoraConfig", dict(r=4, target_modules=[], target_parameters=["q_proj.weight"])),
    "lora-tokens": ("LoraConfig", dict(r=4, target_modules=ATTENTION, trainable_token_indices=[6, 7])),
    "lora-layers": ("LoraConfig", dict(r=4, target_modules=ATTENTION, layers_to_transform=[1])),
    "boft-factors": ("BOFTConfig", dict(boft_block_size=4, boft_n_butterfly_factor=2, target_modules=SQUARE)),
    "oft-cayley": ("OFTConfig", dict(oft_block_size=4, use_cayley_neumann=True, target_modules=SQUARE)),
    "oft-shared": ("OFTConfig", dict(oft_block_size=4, block_share=True, target_modules=SQUARE)),
    "road-2": ("RoadConfig", dict(variant="road_2", group_size=8, target_modules=SQUARE)),
    "miss-bat": ("MissConfig", dict(r=4, init_weights="bat", target_modules=ATTENTION)),
    "lokr-factor": ("LoKrConfig", dict(r=2, decompose_both=True, decompose_factor=4, target_modules=ATTENTION)),
}  # fmt: skip


def moved(model: nn.Module) -> nn.Module:
    """Move trainable parameters off their initial values, which are often zero and would hide others' gradients."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model


def case(kind: str, options: dict[str, Any]) -> Case:
    import peft

    base = causal.causal_model("llama")
    config = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
    return Case(moved(peft.get_peft_model(base, config)), causal.batch_of, own_loss)


TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "multitask-prompt": ("MultitaskPromptTuningConfig", PROMPTS | dict(num_tasks=3, num_ranks=2)),
}
"""Adapters that ask for the task that each example belongs to."""


def with_tasks(kind: str, options: dict[str, Any]) -> Case:
    made = case(kind, options)

    def batch(size: int, generator: torch.Generator) -> Batch:
        return causal.batch_of(size, generator) | {"task_ids": torch.randint(0, 3, (size,), generator=generator)}

    return Case(made.model, batch, own_loss)


def x_lora() -> Case:
    """Two saved LoRAs, mixed by a network that reads the hidden states of a first pass."""
    import peft

    config = peft.LoraConfig(r=4, target_modules=ATTENTION, task_type="CAUSAL_LM")
    with tempfile.TemporaryDirectory() as folder:
        names = ("0", "1")
        for name in names:
            moved(peft.get_peft_model(causal.causal_model("llama"), config)).save_pretrained(f"{folder}/{name}")
        found = peft.XLoraConfig(task_type="CAUSAL_LM", hidden_size=16, xlora_dropout_p=0.0, xlora_size=8,
                                 xlora_depth=2, adapters={name: f"{folder}/{name}" for name in names})  # fmt: skip
        base = causal.causal_model("llama", use_cache=False)
        return Case(moved(peft.get_peft_model(base, found)), causal.batch_of, own_loss)


def on_encoder(kind: str, options: dict[str, Any]) -> Case:
    import peft

    config = getattr(peft, kind)(task_type="SEQ_CLS", **options)
    model = moved(peft.get_peft_model(encoders.encoder("bert"), config))
    return Case(model, partial(encoders.classified, "bert"), own_loss)


def on_classifier() -> Case:
    """LoRA on convolutions and linear layers of a model that is no transformer."""
    import peft

    base = nn.Sequential()
    base.add_module("conv", nn.Conv2d(3, 8, 3, padding=1))
    base.add_module("act", nn.ReLU())
    base.add_module("pool", nn.AdaptiveAvgPool2d(2))
    base.add_module("flat", nn.Flatten())
    base.add_module("head", nn.Linear(32, 3))
    model = moved(peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["conv", "head"])))

    def batch(size: int, generator: torch.Generator) -> Batch:
        return torch.randn(size, 3, 8, 8, generator=generator), torch.randint(0, 3, (size,), generator=generator)

    return Case(model, batch, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]))


for name, (kind, options) in ADAPTERS.items():
    add("peft", f"peft-{name}", partial(case, kind, options), token_mean=True)
for name, (kind, options) in TASKS.items():
    add("peft", f"peft-{name}", partial(with_tasks, kind, options), token_mean=True)
add("peft", "peft-lily", partial(case, "LilyConfig", dict(r=4, target_modules=ATTENTION)), honest=False)
add("peft", "peft-xlora", x_lora, token_mean=True)
BERT_PROMPTS = PROMPTS | dict(num_layers=2)
for name, (kind, options) in {
    "lora": ("LoraConfig", dict(r=4, target_modules=["query", "value"])),
    "dora": ("LoraConfig", dict(r=4, target_modules=["query", "value"], use_dora=True)),
    "ia3": ("IA3Config", dict(target_modules=["key", "value"], feedforward_modules=[])),
    "prompt": ("PromptTuningConfig", BERT_PROMPTS),
    "p-tuning": ("PromptEncoderConfig", BERT_PROMPTS | dict(encoder_hidden_size=8)),
}.items():
    add("peft", f"peft-bert-{name}", partial(on_encoder, kind, options))
add("peft", "peft-conv-lora", on_classifier)
