"""Pre-training on public images, at no privacy cost: the paper's CIFAR network, and the statistics of its layers.

Batch normalisation and dropout help while it learns; afterwards normalisation is folded into the weights and dropout
is removed, so the file holds the paper's network and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.data import Images
from tacit.models.abadi import augment, centre_crop, cifar_cnn, standardise
from tacit.randomness import SecureSource, SeededSource, Source
from tacit.recipes.outcome import write_tensors

CLASSIFIER = ("classifier.0", "classifier.2", "classifier.4")
"""The fully connected layers, in order; the last belongs to the classes of the public set and is not kept."""
_LAYERS = ("convolutions.0", "convolutions.3", *CLASSIFIER)
_DROPOUT = {"classifier.2": 0.5, "classifier.4": 0.3}  # of what goes into the layer


class Learner(nn.Module):
    """The paper's CIFAR network as it is pre-trained: each layer but the last normalised over the batch."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        plain = cifar_cnn(classes=classes)
        self.layers = nn.ModuleList([plain.get_submodule(name) for name in _LAYERS])
        wide = [len(layer.get_parameter("weight")) for layer in self.layers[:-1]]
        self.norms = nn.ModuleList([nn.BatchNorm2d(w) for w in wide[:2]] + [nn.BatchNorm1d(w) for w in wide[2:]])

    def forward(self, images: Tensor) -> Tensor:
        return self.inputs(images)[-1]

    def inputs(self, images: Tensor) -> list[Tensor]:
        """Return the input of each fully connected layer, and at the end the output of the last."""
        values, found = images, []
        for name, layer, norm in zip(_LAYERS, self.layers, [*self.norms, nn.Identity()], strict=True):
            if name in CLASSIFIER:
                found.append(values)
                values = F.dropout(values, _DROPOUT.get(name, 0.0), self.training)
            values = norm(layer(values))
            if name != _LAYERS[-1]:
                values = F.relu(values)
            if name not in CLASSIFIER:
                values = F.max_pool2d(values, 2)
            if name == "convolutions.3":
                values = values.flatten(1)
        return [*found, values]

    @torch.no_grad()
    def folded(self) -> dict[str, Tensor]:
        """Weights and biases, by the names of `cifar_cnn`, of the same function without normalisation."""
        found = {}
        for name, layer, norm in zip(_LAYERS, self.layers, self.norms, strict=False):
            assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
            weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
            scale = norm.get_parameter("weight") / (norm.get_buffer("running_var") + norm.eps).sqrt()
            found[f"{name}.weight"] = weight * scale.view(-1, *[1] * (weight.ndim - 1))
            found[f"{name}.bias"] = (bias - norm.get_buffer("running_mean")) * scale + norm.get_parameter("bias")
        return found


def pretrain(
    images: Images,
    path: Path,
    *,
    epochs: int = 16,
    batch: int = 128,
    learning_rate: float = 0.1,
    seed: int | None = None,
    watch: Callable[[float], None] = lambda share: None,
) -> str:
    """Train the paper's CIFAR network on public ``images``, without privacy, and write all but its last layer.

    Images are distorted anew in each epoch, as in the paper; momentum 0.9, the learning rate rises and falls once.
    Beside the weights are written, for each fully connected layer, the mean of its input over the public images and
    the root mean square distance from it (``NAME.centre``, ``NAME.spread``). Returns the digest of the file.
    """
    source: Source = SecureSource() if seed is None else SeededSource(seed)
    with torch.random.fork_rng(devices=(), enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)  # first weights and dropout
        model = Learner(images.classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        _learn(model, images, source, epochs=epochs, batch=batch, learning_rate=learning_rate, watch=watch)
    tensors = model.folded() | _statistics(model.eval(), images.train)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, {name: value.contiguous() for name, value in tensors.items()})
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _learn(
    model: Learner,
    images: Images,
    source: Source,
    *,
    epochs: int,
    batch: int,
    learning_rate: float,
    watch: Callable[[float], None],
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps, step = epochs * (len(images.train) // batch), 0
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=learning_rate, total_steps=steps + 1)
    for _ in range(epochs):
        order = torch.from_numpy(source.permutation(len(images.train)))
        for chosen in torch.split(order[: len(order) // batch * batch], batch):
            x = standardise(augment(images.train[chosen], source)).contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), images.train_labels[chosen], label_smoothing=0.1)
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            step += 1
            watch(step / steps)


@torch.no_grad()
def _statistics(model: Learner, images: Tensor) -> dict[str, Tensor]:
    pieces = [model.inputs(standardise(centre_crop(piece)))[:-1] for piece in torch.split(images, 500)]
    found = {}
    for name, values in zip(CLASSIFIER, (torch.cat(each) for each in zip(*pieces, strict=True)), strict=True):
        found[f"{name}.centre"] = values.mean(dim=0)
        found[f"{name}.spread"] = (values - values.mean(dim=0)).square().sum(dim=1).mean().sqrt().view(1)
    return found
