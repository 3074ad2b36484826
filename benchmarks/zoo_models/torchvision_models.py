"""Models of `torchvision`, with group norm where they have batch norm: images, segmentation, video."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, add, classes, no_dropout
from zoo_models.timm_models import group_norms

NAMES = ("squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5", "regnet_x_400mf",
         "efficientnet_b0")  # fmt: skip
"""Models that are small enough as they are."""


def pictures(side: int, size: int, generator: torch.Generator) -> Batch:
    return torch.randn(size, 3, side, side, generator=generator), classes(size, 3, generator)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def case(name: str) -> Case:
    from torchvision import models

    model = getattr(models, name)(weights=None, num_classes=3)
    side = 64 if name == "squeezenet1_1" else 32
    return Case(no_dropout(group_norms(model)), partial(pictures, side), loss, sizes=(4, 3, 1))


def residual(block: str, **options: Any) -> Case:
    from torchvision.models import resnet

    model = resnet.ResNet(getattr(resnet, block), [1, 1, 1, 1], num_classes=3, **options)
    return Case(no_dropout(group_norms(model)), partial(pictures, 32), loss, sizes=(4, 3, 1))


def with_classifier(name: str, features: int) -> Case:
    """A network whose large classifier is replaced, as for fine-tuning."""
    from torchvision import models

    layers: list[Any] = [8, "M", 16, "M"]
    if name == "alexnet":
        model: nn.Module = models.alexnet(weights=None)
    else:
        model = models.VGG(models.vgg.make_layers(layers, batch_norm=name == "vgg_bn"), init_weights=False)
    model.classifier = nn.Linear(features, 3)
    return Case(no_dropout(group_norms(model)), partial(pictures, 64), loss, sizes=(4, 3, 1))


def regnet() -> Case:
    """RegNetY with squeeze and excitation, two small stages."""
    from torchvision.models import regnet as found

    parameters = found.BlockParams(depths=[1, 1], widths=[16, 32], group_widths=[8, 8], strides=[2, 2],
                                   bottleneck_multipliers=[1.0, 1.0], se_ratio=0.25)  # fmt: skip
    return Case(group_norms(found.RegNet(parameters, num_classes=3)), partial(pictures, 32), loss)


def convnext() -> Case:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    settings = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)]
    return Case(no_dropout(ConvNeXt(settings, stochastic_depth_prob=0.0, num_classes=3)), partial(pictures, 32), loss)


def small(kind: str, **options: Any) -> Case:
    from torchvision import models

    model = getattr(models, kind)(num_classes=3, **options)
    return Case(no_dropout(group_norms(model)), partial(pictures, 32), loss)


SWIN = dict(patch_size=[4, 4], embed_dim=12, depths=[1, 2], num_heads=[2, 2], window_size=[4, 4],
            stochastic_depth_prob=0.0)  # fmt: skip


def swin_v2() -> Case:
    from torchvision.models import swin_transformer as swin

    model = swin.SwinTransformer(num_classes=3, block=swin.SwinTransformerBlockV2,
                                 downsample_layer=swin.PatchMergingV2, **SWIN)  # fmt: skip
    return Case(model, partial(pictures, 32), loss)


def maxvit() -> Case:
    from torchvision import models

    model = models.MaxVit(
        input_size=(32, 32), stem_channels=8, partition_size=4, block_channels=[8, 16], block_layers=[1, 1], head_dim=8,
        stochastic_depth_prob=0.0, num_classes=3,
    )  # fmt: skip
    return Case(no_dropout(group_norms(model)), partial(pictures, 32), loss)


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

    return Case(no_dropout(group_norms(model)), batch, pixels, sizes=(4, 3, 1))


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


for each in NAMES:
    add("torchvision", f"tv-{each}", partial(case, each))
add("torchvision", "tv-resnet-basic", partial(residual, "BasicBlock"))
add("torchvision", "tv-resnet-bottleneck", partial(residual, "Bottleneck"))
add("torchvision", "tv-resnext", partial(residual, "Bottleneck", groups=32, width_per_group=4))
add("torchvision", "tv-wide-resnet", partial(residual, "Bottleneck", width_per_group=128))
add("torchvision", "tv-alexnet", partial(with_classifier, "alexnet", 9216))
add("torchvision", "tv-vgg", partial(with_classifier, "vgg", 784))
add("torchvision", "tv-vgg-norm", partial(with_classifier, "vgg_bn", 784))
add("torchvision", "tv-regnet-y", regnet)
add("torchvision", "tv-convnext", convnext)
add("torchvision", "tv-densenet", partial(small, "DenseNet", growth_rate=8, block_config=(2, 2), num_init_features=8))
add("torchvision", "tv-vit", partial(small, "VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=2,
                                     hidden_dim=16, mlp_dim=24))  # fmt: skip
add("torchvision", "tv-swin", partial(small, "SwinTransformer", **SWIN))
add("torchvision", "tv-swin-v2", swin_v2)
add("torchvision", "tv-maxvit", maxvit)
add("torchvision", "tv-googlenet", partial(googlenet, "googlenet", 64))
add("torchvision", "tv-lraspp", partial(segmentation, "lraspp_mobilenet_v3_large"))
add("torchvision", "tv-deeplab", partial(segmentation, "deeplabv3_mobilenet_v3_large"))
add("torchvision", "tv-r3d", video)
