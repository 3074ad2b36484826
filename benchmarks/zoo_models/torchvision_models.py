"""Models of `torchvision`, with group norm where they have batch norm: images, segmentation, video."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, add, classes, no_dropout
from zoo_models.timm_models import group_norms

BLOCKS = ("alexnet", "vgg11", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "squeezenet1_1",
          "densenet121", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5", "regnet_x_400mf",
          "regnet_y_400mf", "efficientnet_b0", "convnext_tiny")  # fmt: skip
SIDES = {"alexnet": 64, "squeezenet1_1": 64}


def pictures(side: int, size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 3, side, side, generator=generator), classes(size, 3, generator)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def without_depth(model: nn.Module) -> nn.Module:
    """Switch off stochastic depth, whose draws the oracle cannot repeat."""
    for module in no_dropout(model).modules():
        if type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    return model


def case(name: str) -> Case:
    from torchvision import models

    model = getattr(models, name)(weights=None, num_classes=3)
    return Case(without_depth(group_norms(model)), partial(pictures, SIDES.get(name, 32)), loss, sizes=(4, 3, 1))


def small(kind: str, **options: Any) -> Case:
    from torchvision import models

    model = getattr(models, kind)(num_classes=3, **options)
    return Case(without_depth(group_norms(model)), partial(pictures, 32), loss)


SWIN = dict(patch_size=[4, 4], embed_dim=12, depths=[1, 2], num_heads=[2, 2], window_size=[4, 4],
            stochastic_depth_prob=0.0)  # fmt: skip


def swin_v2() -> Case:
    from torchvision.models import swin_transformer as swin

    model = swin.SwinTransformer(num_classes=3, block=swin.SwinTransformerBlockV2,
                                 downsample_layer=swin.PatchMergingV2, **SWIN)  # type: ignore[arg-type]  # fmt: skip
    return Case(model, partial(pictures, 32), loss)


def maxvit() -> Case:
    from torchvision import models

    model = models.MaxVit(
        input_size=(32, 32), stem_channels=8, partition_size=4, block_channels=[8, 16], block_layers=[1, 1], head_dim=8,
        stochastic_depth_prob=0.0, num_classes=3,
    )  # fmt: skip
    return Case(without_depth(group_norms(model)), partial(pictures, 32), loss)


def segmentation(name: str) -> Case:
    """Pixels of the ignored class count for nothing; their number is the same in every example."""
    from torchvision.models import segmentation as found

    model = getattr(found, name)(weights=None, weights_backbone=None, num_classes=3)

    def batch(size: int, generator: torch.Generator) -> Batch:
        target = torch.randint(0, 3, (size, 32, 32), generator=generator)
        target[:, :2] = 255
        return torch.randn(size, 3, 32, 32, generator=generator), target

    def pixels(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0])["out"], batch[1], ignore_index=255)

    return Case(without_depth(group_norms(model)), batch, pixels, sizes=(4, 3, 1))


def video() -> Case:
    from torchvision.models import video as found

    def batch(size: int, generator: torch.Generator) -> Batch:
        return torch.randn(size, 3, 4, 16, 16, generator=generator), classes(size, 3, generator)

    return Case(group_norms(found.r3d_18(weights=None, num_classes=3)), batch, loss, sizes=(3, 2, 1))


def googlenet(name: str, side: int) -> Case:
    """Training with auxiliary classifiers, weighted as the paper says."""
    from torchvision import models

    model = getattr(models, name)(weights=None, num_classes=3, aux_logits=True, init_weights=False)

    def total(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch[0])
        each = [F.cross_entropy(value, batch[1]) for value in out if value is not None]
        return each[0] + 0.3 * sum(each[1:])

    return Case(no_dropout(group_norms(model)), partial(pictures, side), total, sizes=(3, 2, 1))


for each in BLOCKS:
    add("torchvision", f"tv-{each}", partial(case, each))
add("torchvision", "tv-vit", partial(small, "VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=2,
                                     hidden_dim=16, mlp_dim=24))  # fmt: skip
add("torchvision", "tv-swin", partial(small, "SwinTransformer", **SWIN))
add("torchvision", "tv-swin-v2", swin_v2)
add("torchvision", "tv-maxvit", maxvit)
add("torchvision", "tv-googlenet", partial(googlenet, "googlenet", 64))
add("torchvision", "tv-lraspp", partial(segmentation, "lraspp_mobilenet_v3_large"))
add("torchvision", "tv-deeplab", partial(segmentation, "deeplabv3_mobilenet_v3_large"))
add("torchvision", "tv-r3d", video)
