"""Private steps on a device that is not the CPU: what they cost in launches and waits, and that they are right.

The device is `second_device.cpp`, in a process of its own: PyTorch has room for one such device, and it stays.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.cpp_extension import get_cxx_compiler

HERE = Path(__file__).parent

MOST_SYNCHRONISATIONS = 8
"""Waits of the host in a step, whatever the model; copying the batch to the device included."""

MOST_LAUNCHES = {"mlp": 100, "tables": 250, "resnet18": 1000, "gpt2": 2500}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which(get_cxx_compiler()) is None,
    reason="the second device is built with a C++ compiler, on Linux",
)


def _run(script: str, *words: str) -> Any:
    done = subprocess.run([sys.executable, str(HERE / script), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def steps() -> Any:
    return _run("steps.py")


@pytest.fixture(scope="module")
def facts() -> Any:
    return _run("facts.py")


@pytest.mark.parametrize("model", MOST_LAUNCHES)
def test_the_host_waits_at_most_eight_times_in_a_private_step(steps: Any, model: str) -> None:
    found = steps[model]["private"]
    assert 0 < found["synchronisations"] <= MOST_SYNCHRONISATIONS, found


@pytest.mark.parametrize("model", MOST_LAUNCHES)
def test_a_private_step_stays_within_its_kernel_launches(steps: Any, model: str) -> None:
    found = steps[model]
    assert found["ordinary"]["launches"] < found["private"]["launches"] <= MOST_LAUNCHES[model], found


def test_synchronisations_do_not_grow_with_the_layers() -> None:
    few, many = (found["private"] for found in _run("steps.py", "mlp", "--layers", "2", "9").values())
    assert few["synchronisations"] == many["synchronisations"]


def test_operations_of_two_devices_are_refused(facts: Any) -> None:
    assert "all must be on one device" in facts["mixed"]


@pytest.mark.parametrize("model", ["mlp", "tables", "resnet18"])
def test_norms_and_clipped_sums_on_the_device_are_those_of_the_cpu(facts: Any, model: str) -> None:
    assert facts["sums"][model]["norms"] < 1e-5
    assert facts["sums"][model]["sums"] < 1e-5


def test_an_infinite_example_counts_as_zero_on_the_device(facts: Any) -> None:
    with_it, without = facts["not_finite"]
    assert with_it == pytest.approx(without, abs=1e-6)


def test_terms_that_cancel_are_measured_apart_on_the_device(facts: Any) -> None:
    found = facts["cancelling"]
    assert found["norms"] < 1e-5 and found["sums"] < 1e-5
    assert found["first"] < 2**20  # of terms 2^40 times as large the last bits stay


@pytest.mark.parametrize(("where", "kind"), [("conv.bias", "parameter"), ("narrow", "buffer"), ("number", "buffer")])
def test_a_write_on_the_device_is_found(facts: Any, where: str, kind: str) -> None:
    assert facts["written"][where].startswith(f"{kind} '{where}' changed")


def test_noise_drawn_ahead_is_what_the_source_drew_and_is_handed_out_once(facts: Any) -> None:
    assert facts["noise_ahead"] == {"right": True, "repeated": False, "more": False, "discarded": False}


def test_noise_drawn_ahead_has_the_deviation_and_the_grid_of_its_sum(facts: Any) -> None:
    found = facts["noisy_sums"]
    assert found["first"] == pytest.approx(1, abs=0.01)
    assert found["second"] == pytest.approx(1, abs=0.01)
    assert found["mean"] == pytest.approx(7, abs=0.05)
    assert found["off_grid"] == 0
    assert not found["left"]  # it was the noise drawn ahead
