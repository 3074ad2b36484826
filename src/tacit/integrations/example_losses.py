"""Compute each example's own loss from the output of a Hugging Face model, for a private mean of losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CLASSES = ("ForSequenceClassification", "ForImageClassification", "ForVideoClassification", "ForAudioClassification")
_TOKENS = ("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "ForTokenClassification")


def check_known(model: Any) -> None:
    """Refuse a model for which the loss of a single example is not known."""
    kind = getattr(model, "loss_type", None)
    if kind not in (*_CLASSES, *_TOKENS, "ForQuestionAnswering"):
        raise ValueError(
            f"metrics has 'loss', but the loss of one example is not known for {type(model).__name__} (loss type "
            f"{kind}); override example_losses(outputs, inputs) of the trainer, or leave 'loss' out of metrics."
        )


def example_losses(model: Any, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> Tensor:
    """Return one number for each example: its loss, or the mean over its own tokens that have a label.

    ``model`` is one of transformers, without wrappers.
    """
    with torch.no_grad():
        kind = model.loss_type
        if kind == "ForQuestionAnswering":
            ends = [("start_logits", "start_positions"), ("end_logits", "end_positions")]
            return torch.stack([_position(_plain(outputs[a]), _plain(inputs[b])) for a, b in ends]).mean(0)
        logits, labels = _plain(outputs["logits"]).float(), _plain(inputs["labels"])
        if kind in _TOKENS:
            shifted = kind in ("ForCausalLM", "ForConditionalGeneration") and not model.config.is_encoder_decoder
            return _tokens(logits[:, :-1], labels[:, 1:]) if shifted else _tokens(logits, labels)
        return _classes(model, logits, labels)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().as_subclass(Tensor)


def _tokens(logits: Tensor, labels: Tensor) -> Tensor:
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    return each.sum(1) / (labels != -100).sum(1).clamp(min=1)


def _position(logits: Tensor, positions: Tensor) -> Tensor:
    most = logits.shape[1]  # positions outside the text are ignored, as transformers does
    return F.cross_entropy(logits.float(), positions.view(-1).clamp(0, most), ignore_index=most, reduction="none")


def _classes(model: Any, logits: Tensor, labels: Tensor) -> Tensor:
    problem = model.config.problem_type
    if problem == "regression" or (problem is None and logits.shape[-1] == 1):
        return (logits - labels.view_as(logits)).square().flatten(1).mean(1)
    if problem == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(1)
    return F.cross_entropy(logits, labels.view(-1), reduction="none")


class SmoothedLoss:
    """The loss of the Trainer's ``label_smoothing_factor``, as one operation that shows each example's own loss.

    The Trainer's own divides a sum by the number of labels in the batch, by which one record would weigh the others.
    """

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def __call__(self, outputs: Any, labels: Tensor, shift_labels: bool = False, num_items_in_batch: Any = None) -> Any:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        logits = logits.reshape(-1, logits.shape[-1])
        return F.cross_entropy(logits, labels.reshape(-1), label_smoothing=self.epsilon)
