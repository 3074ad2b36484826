"""Batches for the tasks of `transformers`: words, images, sounds, series, and their labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo_models.cases import Batch, classes, padded_words

LENGTH = 16


def words(config: Any, size: int, generator: torch.Generator) -> Batch:
    return padded_words(size, generator, longest=LENGTH, shortest=8)


def causal(config: Any, size: int, generator: torch.Generator) -> Batch:
    batch = words(config, size, generator)
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def classified(config: Any, size: int, generator: torch.Generator) -> Batch:
    return words(config, size, generator) | {"labels": classes(size, config.num_labels, generator)}


def tagged(config: Any, size: int, generator: torch.Generator) -> Batch:
    batch = words(config, size, generator)
    tags = torch.randint(0, config.num_labels, batch["input_ids"].shape, generator=generator)
    return batch | {"labels": tags.masked_fill(batch["attention_mask"] == 0, -100)}


def masked(config: Any, size: int, generator: torch.Generator) -> Batch:
    batch = words(config, size, generator)
    hidden = torch.rand(batch["input_ids"].shape, generator=generator) < 0.35
    hidden[:, 1] = True
    hidden &= batch["attention_mask"] == 1
    labels = batch["input_ids"].masked_fill(~hidden, -100)
    return batch | {"input_ids": batch["input_ids"].masked_fill(hidden, 4), "labels": labels}


def questioned(config: Any, size: int, generator: torch.Generator) -> Batch:
    batch = words(config, size, generator)
    return batch | {"start_positions": classes(size, 3, generator), "end_positions": classes(size, 3, generator) + 2}


def chosen(config: Any, size: int, generator: torch.Generator) -> Batch:
    flat = words(config, 2 * size, generator)
    return {k: v.unflatten(0, (size, 2)) for k, v in flat.items()} | {"labels": classes(size, 2, generator)}


def translated(config: Any, size: int, generator: torch.Generator) -> Batch:
    target = padded_words(size, generator, longest=8, shortest=4)
    return words(config, size, generator) | {
        "labels": target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
    }


def _side(config: Any) -> tuple[int, int]:
    for part in (config, getattr(config, "vision_config", None), getattr(config, "backbone_config", None)):
        side = getattr(part, "image_size", None)
        if side is not None:
            return (side, side) if isinstance(side, int) else tuple(side)[-2:]
    return 32, 32


def picture(config: Any, size: int, generator: torch.Generator) -> Batch:
    return {"pixel_values": torch.randn(size, 3, *_side(config), generator=generator)}


def seen(config: Any, size: int, generator: torch.Generator) -> Batch:
    return picture(config, size, generator) | {"labels": classes(size, config.num_labels, generator)}


def detected(config: Any, size: int, generator: torch.Generator) -> Batch:
    """Two boxes for each image, as tensors: `listed` makes the list of dictionaries that the model takes."""
    boxes = 0.25 + 0.4 * torch.rand(size, 2, 4, generator=generator)
    labels = torch.randint(0, config.num_labels, (size, 2), generator=generator)
    return picture(config, size, generator) | {"boxes": boxes, "class_labels": labels}


def listed(model: nn.Module, batch: Batch) -> Tensor:
    labels = [{"boxes": b, "class_labels": c} for b, c in zip(batch["boxes"], batch["class_labels"])]
    return model(pixel_values=batch["pixel_values"], labels=labels).loss


def filmed(config: Any, size: int, generator: torch.Generator) -> Batch:
    frames = getattr(config, "num_frames", 4)
    film = torch.randn(size, frames, 3, *_side(config), generator=generator)
    return {"pixel_values": film, "labels": classes(size, config.num_labels, generator)}


def paired(config: Any, size: int, generator: torch.Generator) -> Batch:
    return words(config, size, generator) | picture(config, size, generator)


def contrasted(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch, return_loss=True).loss


def following(config: Any, size: int, generator: torch.Generator) -> Batch:
    return words(config, size, generator) | {"labels": classes(size, 2, generator)}
