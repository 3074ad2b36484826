"""Train with one of the frameworks in a process that kills itself in the middle of a lot; then resume in another.

``python -m integrations.killed FRAMEWORK DIRECTORY STEP``; prints one JSON object at the end. The process that dies
is forked from this one before either trains, so that the framework is imported once for both.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import tacit
from tacit.ledger import Ledger

BUDGET = tacit.Budget(3.0, 1e-5)
STEPS = 8


def die() -> None:
    """End at once, as by a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


def with_transformers(directory: Path, last: int | None, resume: bool) -> Any:
    import transformers

    from integrations.tiny import task
    from tacit.integrations.transformers import PrivateTrainer

    class Death(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == last:
                die()

    model, data, words = task("classification")
    args = transformers.TrainingArguments(
        str(directory),
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        save_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = PrivateTrainer(
        model=model,
        args=args,
        train_dataset=data,
        processing_class=words,
        privacy={"budget": BUDGET},
        callbacks=[Death()],
    )
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.state.global_step == trainer.run.step == 4 * trainer.state.epoch
    return trainer.run


def points() -> tuple[Any, Any]:
    """Forty-eight points in three classes, and a linear model."""
    y = torch.arange(48) % 3
    x = 2 * torch.eye(4)[y] + 0.5 * torch.randn(48, 4, generator=torch.Generator().manual_seed(7))
    return torch.nn.Linear(4, 3), torch.utils.data.TensorDataset(x, y)


def with_lightning(directory: Path, last: int | None, resume: bool) -> Any:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from tacit.integrations.lightning import PrivateStrategy

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, net: torch.nn.Module) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, number: int) -> Any:
            if self.trainer.global_step == last:
                die()
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.1)

    net, people = points()
    private = PrivateStrategy(budget=BUDGET, clipping=1.0, lot_size=12, batch_size=6)
    trainer = lightning.Trainer(
        max_epochs=2,
        strategy=private,
        default_root_dir=directory,
        callbacks=[ModelCheckpoint(directory / "saved", every_n_train_steps=3, filename="{step}")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    found = sorted((directory / "saved").glob("*.ckpt"))
    loader = torch.utils.data.DataLoader(people, batch_size=12, shuffle=True)
    trainer.fit(Module(net), loader, ckpt_path=str(found[-1]) if resume else None)
    assert trainer.global_step == private.run.step
    return private.run


def with_accelerate(directory: Path, last: int | None, resume: bool) -> Any:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    net, people = points()
    model, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=0.1))
    run = tacit.make_private(
        model,
        optimizer,
        people,
        lot_size=12,
        epochs=2,
        clipping=1.0,
        budget=BUDGET,
        batch_size=6,
        ledger=directory / "ledger.jsonl",
    )
    if resume:
        run.load(directory / "checkpoint")
    for x, y in run.batches():
        if run.step == last:
            die()
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if run.lot_finished and run.step % 3 == 0:
            run.save(directory / "checkpoint")
    return run


FRAMEWORKS = {"transformers": with_transformers, "lightning": with_lightning, "accelerate": with_accelerate}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    framework, directory, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    importlib.import_module(framework)
    if framework == "transformers":
        importlib.import_module("tacit.integrations.transformers")
    child = os.fork()
    if not child:
        FRAMEWORKS[framework](directory, last, False)
        os._exit(1)  # it should have died
    killed_by = -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    held = len(Ledger.load(directory / "ledger.jsonl"))
    run = FRAMEWORKS[framework](directory, None, True)
    facts = {"killed_by": killed_by, "held": held, "step": run.step, "charged": len(run.ledger)}
    print(json.dumps(facts | {"epsilon": run.guarantee().epsilon}))


if __name__ == "__main__":
    main()
