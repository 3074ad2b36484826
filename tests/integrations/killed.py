"""Train with one of the frameworks in a process of its own, which kills itself in the middle of a lot if told so.

``python -m integrations.killed FRAMEWORK DIRECTORY [STEP]``; prints one JSON object at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import tacit

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


FRAMEWORKS = {"transformers": with_transformers}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    framework, directory, *death = sys.argv[1:]
    run = FRAMEWORKS[framework](Path(directory), int(death[0]) if death else None, not death)
    facts = {"step": run.step, "charged": len(run.ledger), "epsilon": run.guarantee().epsilon}
    print(json.dumps(facts | {"noise_multiplier": run.noise_multiplier}))


if __name__ == "__main__":
    main()
