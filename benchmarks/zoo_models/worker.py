"""A process that measures models on request: `NAME PART` a line on stdin, one JSON object a line on stdout."""

from __future__ import annotations

import json
import os
import sys

import torch


def declare_detection_operators() -> None:
    """Declare the operators that `torchvision` expects from its compiled part, which builds for CUDA lack on a CPU.

    None of the models here calls them.
    """
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        declare_detection_operators.library = library


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    declare_detection_operators()
    from zoo_models import load
    from zoo_models.measure import measure

    entries = load()
    for line in sys.stdin:
        name, part = line.split()
        answers.write(json.dumps(measure(entries[name], part)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
