"""Image classifiers of `timm`, with group norm where they have batch norm."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, add, classes, no_dropout

SMALL = dict(num_classes=3)
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (32, dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)),
    "vit_relpos_small_patch16_224": (32, dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)),
    "deit3_small_patch16_224": (32, dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)),
    "beit_base_patch16_224": (32, dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)),
    "eva02_tiny_patch14_224": (28, dict(img_size=28, patch_size=7, embed_dim=24, depth=2, num_heads=2)),
    "cait_xxs24_224": (32, dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)),
    "xcit_nano_12_p16_224": (32, dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)),
    "convit_tiny": (32, dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, local_up_to_layer=1)),
    "pit_ti_224": (32, dict(img_size=32, patch_size=8, stride=8, base_dims=(12, 12), depth=(1, 1), heads=(1, 2))),
    "swin_tiny_patch4_window7_224": (32, dict(img_size=32, patch_size=4, window_size=4, embed_dim=12, depths=(1, 2),
                                              num_heads=(2, 2))),
    "swinv2_tiny_window8_256": (32, dict(img_size=32, patch_size=4, window_size=4, embed_dim=12, depths=(1, 2),
                                         num_heads=(2, 2))),
    "twins_svt_small": (32, dict(img_size=32, embed_dims=(8, 16, 16, 16), depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 2),
                                 wss=(2, 2, 2, 1))),
    "mambaout_femto": (32, dict(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))),
    "pvt_v2_b0": (32, dict(depths=(1, 1, 1, 1), embed_dims=(8, 8, 16, 16), num_heads=(1, 2, 2, 2))),
    "davit_tiny": (32, dict(depths=(1, 1, 1, 1), embed_dims=(8, 8, 16, 16), num_heads=(1, 2, 2, 2),
                            window_size=4)),
    "hiera_tiny_224": (32, dict(img_size=(32, 32), embed_dim=12, stages=(1, 1), q_pool=1, mask_unit_size=(4, 4),
                                num_heads=1)),
    "sequencer2d_s": (32, dict(img_size=32, layers=(1, 1), patch_sizes=(8, 1), embed_dims=(12, 16),
                               hidden_sizes=(6, 8), mlp_ratios=(2.0, 2.0))),
    "crossvit_9_240": (32, dict(img_size=32, img_scale=(1.0, 1.0), patch_size=(8, 16), embed_dim=(16, 16),
                                depth=((1, 1, 0),), num_heads=(2, 2), mlp_ratio=(2, 2, 1))),
    "resnet18": (32, dict(layers=(1, 1, 1, 1), channels=(8, 8, 16, 16))),
    "resnetv2_50": (32, dict(layers=(1, 1), channels=(32, 64), stem_chs=8)),
    "resnet26d": (32, dict(layers=(1, 1, 1, 1), channels=(8, 8, 8, 8))),
    "seresnet18": (32, dict(layers=(1, 1, 1, 1), channels=(16, 16, 16, 16))),
    "nf_resnet26": (32, {}),
    "ghostnet_050": (32, {}),
    "regnetx_002": (32, {}),
    "mobilevit_xxs": (32, {}),
    "edgenext_xx_small": (32, dict(dims=(8, 16, 24, 32), depths=(1, 1, 1, 1))),
    "test_byobnet": (32, {}),
    "test_coatnet": (64, dict(img_size=64)),
    "test_convnext": (32, {}),
    "test_convnext2": (32, {}),
    "test_efficientnet": (32, {}),
    "test_maxvit": (64, dict(img_size=64)),
    "test_nfnet": (32, {}),
    "test_vit3": (64, dict(img_size=64)),
    "mobilenetv4_conv_small_035": (32, {}),
    "lcnet_035": (32, {}),
    "tinynet_e": (32, {}),
}  # fmt: skip
"""Registered models by name: side of the pictures, arguments of `timm.create_model`."""

CLASSES: dict[str, dict[str, Any]] = {
    "nest.Nest": dict(img_size=32, patch_size=4, embed_dims=(12, 24), num_heads=(2, 2), depths=(1, 1), num_levels=2),
    "metaformer.MetaFormer": dict(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16)),
    "convnext.ConvNeXt": dict(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), use_grn=True),
    "focalnet.FocalNet": dict(depths=(1, 1, 1, 1), embed_dim=8),
    "convmixer.ConvMixer": dict(dim=16, depth=2, kernel_size=3, patch_size=8),
    "mlp_mixer.MlpMixer": dict(img_size=32, patch_size=8, embed_dim=24, num_blocks=2),
    "densenet.DenseNet": dict(growth_rate=8, block_config=(2, 2)),
}  # fmt: skip
"""Classes of `timm.models` that are small only if they are built directly."""


def group_norms(model: nn.Module) -> nn.Module:
    """Replace every batch norm by a group norm, as `opacus` and `tacit` advise; activations in it stay."""
    for name, child in list(model.named_children()):
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            channels = child.num_features
            norm: nn.Module = nn.GroupNorm(next(g for g in (4, 3, 2, 1) if channels % g == 0), channels)
            after = [m for m in (getattr(child, "drop", None), getattr(child, "act", None)) if m is not None]
            setattr(model, name, nn.Sequential(norm, *after) if after else norm)
        else:
            group_norms(child)
    return model


def pictures(side: int, size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 3, side, side, generator=generator), classes(size, 3, generator)


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def case(name: str) -> Case:
    import timm

    side, options = MODELS[name]
    model = timm.create_model(name, **SMALL, **options)
    return Case(no_dropout(group_norms(model)), partial(pictures, side), loss)


def class_case(name: str) -> Case:
    module, kind = name.split(".")
    made = getattr(importlib.import_module(f"timm.models.{module}"), kind)(**SMALL, **CLASSES[name])
    return Case(no_dropout(group_norms(made)), partial(pictures, 32), loss)


for each in MODELS:
    add("timm", f"timm-{each}", partial(case, each))
for each in CLASSES:
    add("timm", f"timm-{each}", partial(class_case, each))
