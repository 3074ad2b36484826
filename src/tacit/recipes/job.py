"""The parts of a run, checked and fixed before anything is written."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.data import Images
from tacit.features import Fitted
from tacit.features.front import image_shape
from tacit.ledger import Budget, Ledger
from tacit.randomness import SecureSource, SeededSource, Source
from tacit.recipes.averaging import Average
from tacit.recipes.outcome import FORMAT, described, read_tensors, versions, write_tensors
from tacit.recipes.recipe import Recipe
from tacit.recipes.schedule import Schedule, schedule
from tacit.training import Metric, PrivateRun, make_private

BATCH = 2048
"""The number of rows processed at once; it changes only speed and memory."""


class Job:
    """A recipe, a data set and a budget, checked; makes the parts of the run from them."""

    def __init__(self, recipe: Recipe, images: Images, *, budget: Budget, seed: int | None, accountant: str) -> None:
        if not isinstance(budget, Budget):
            raise ValueError(f"budget is {budget!r}; give a tacit.Budget: the plan is made before the first release.")
        self.recipe, self.images, self.budget, self.seed, self.accountant = recipe, images, budget, seed, accountant
        self.records, self._shape = len(images.train), image_shape(images.train)
        for name, labels in (("train", images.train_labels), ("test", images.test_labels)):
            if len(labels) != len(getattr(images, name)):
                raise ValueError(f"there are {len(getattr(images, name))} {name} images and {len(labels)} labels.")
        self.model = self._built()
        self.plan: Schedule = schedule(recipe, self.model, records=self.records, budget=budget, accountant=accountant)
        self._description = described(recipe)

    def _built(self) -> nn.Module:
        """Return a new network; its first weights do not depend on any record."""
        with torch.random.fork_rng(devices=(), enabled=self.seed is not None):
            if self.seed is not None:
                torch.manual_seed(self.seed)
            return self.recipe.model.build(self.recipe.front.features(self._shape), self.images.classes)

    def facts(self) -> dict[str, Any]:
        """run.json as it is when the run begins."""
        images, secret = self.images, self.seed is None
        notes = [
            "Test accuracy is computed on the test set, which is taken to be public.",
            "The data set's fingerprint is a hash of its records, without noise: do not publish it if they are secret.",
        ]
        if not secret:
            notes.append("Not private: the noise comes from a seed, for debugging.")
        return {
            "format": FORMAT,
            "versions": versions(),
            "finished": False,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": 0.0,
            "dataset": {
                "name": images.name,
                "records": self.records,
                "test_records": len(images.test),
                "classes": images.classes,
                "fingerprint": images.fingerprint,
                "source": images.source,
            },
            "recipe": self._description,
            "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
            "accountant": self.accountant,
            "seed": self.seed,
            "plan": {"steps": self.plan.steps, "noise_multiplier": self.plan.noise_multiplier},
            "history": [],
            "notes": notes,
        }

    def architecture(self) -> dict[str, Any]:
        """Return model.json: how to build the network that model.safetensors fills."""
        return {
            "format": FORMAT,
            "front": described(self.recipe.front),
            "model": described(self.recipe.model),
            "image_shape": list(self._shape),
            "feature_shape": list(self.recipe.front.features(self._shape)),
            "classes": self.images.classes,
        }

    def front(self, saved: Path, ledger: Ledger) -> Fitted:
        """The front end, fitted once: what it learned is kept at once, so that a resumed run need not pay again."""
        if saved.exists():
            held = {step for step, _ in ledger.entries}
            if not held.issuperset(self.recipe.front.charges(self.records)):
                raise ValueError(f"{saved} was learned from the records, but the ledger does not list it; begin anew.")
            return self.recipe.front.restore(read_tensors(saved), self._shape)
        fitted = self.recipe.front.fit(self.images.train, ledger=ledger, source=self.source(f"front {len(ledger)}"))
        write_tensors(saved, fitted.state())
        return fitted

    def source(self, name: str) -> Source:
        """Noise for one purpose."""
        if self.seed is None:
            return SecureSource()
        source = SeededSource(self.seed)
        source.branch(name)  # else the run would draw the same numbers again
        return source

    def private(self, rows: Tensor, ledger: Ledger) -> PrivateRun:
        recipe = self.recipe
        sgd = torch.optim.SGD(
            self.model.parameters(), lr=recipe.optimizer.learning_rate, momentum=recipe.optimizer.momentum
        )
        return make_private(
            self.model,
            sgd,
            TensorDataset(rows, self.images.train_labels),
            lot_size=recipe.lot_size,
            steps=self.plan.steps,
            clipping=recipe.clipping,
            budget=self.budget,
            noise_multiplier=self.plan.noise_multiplier,
            ledger=ledger,
            batch_size=BATCH,
            metrics={"loss": Metric(bound=recipe.loss_bound)} if recipe.loss_bound else {},
            reduction="mean",
            accountant=self.accountant,
            seed=self.seed,
        )

    def trained(self, average: Average) -> nn.Module:
        """A network of its own with the averaged weights."""
        model = self._built()
        model.load_state_dict(average.weights())
        return model.eval()
