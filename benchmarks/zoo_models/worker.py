"""A process that measures models on request: `NAME PART` a line on stdin, one JSON object a line on stdout."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
import warnings
from typing import Any

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


def measure(entry: Any, part: str) -> dict[str, Any]:
    """Return one part's result; an error is a result too."""
    from zoo_models.beside import timed, with_opacus
    from zoo_models.measure import check_entry, first_sentence, tacit_twice
    from zoo_models.public import publicly

    parts = {"entry": check_entry, "tacit": tacit_twice, "public": publicly, "opacus": with_opacus, "time": timed}
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        result = parts[part](entry)
    except Exception as error:
        result = {"outcome": "crash", "reason": f"{type(error).__name__}: {first_sentence(error)}",
                  "message": traceback.format_exc()[-1500:]}  # fmt: skip
    return result | {"took": round(time.perf_counter() - start, 2)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    declare_detection_operators()
    from zoo_models import load

    entries = load()
    for line in sys.stdin:
        name, part = line.split()
        answers.write(json.dumps(measure(entries[name], part)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
