"""Versions of PyTorch in which the engine is blind are refused, and the engine proves that it is not."""

import subprocess
import sys
import types

import pytest
import torch
from torch import nn

from tacit import gradients
from tacit.gradients import self_test
from tacit.gradients.torch_version import check_version


@pytest.mark.parametrize("version", ["2.6.0", "2.8.0+cu128", "2.9.1", "2.10.0", "1.13.1"])
def test_versions_that_hide_the_loss_are_refused(version):
    with pytest.raises(ImportError, match=r"install PyTorch 2\.11 or newer"):
        check_version(version)


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.0a0+gitabc", "3.0.1"])
def test_newer_versions_are_accepted(version):
    check_version(version)


def test_the_engine_is_not_imported_with_an_older_version():
    code = (
        "import torch\n"
        "torch.__version__ = torch.torch_version.TorchVersion('2.10.0')\n"
        "try:\n"
        "    import tacit.gradients\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "2.10.0" in shown
    assert shown.count("\n") == 1


def test_the_floor_of_the_package_is_the_floor_of_the_engine():
    import tomllib
    from pathlib import Path

    from tacit.gradients.torch_version import OLDEST

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"torch>={OLDEST[0]}.{OLDEST[1]}" in project["project"]["dependencies"]


@pytest.fixture
def unproved(monkeypatch):
    monkeypatch.setitem(self_test._STATE, "proved", False)


def _without_dispatch(function):
    """The function as it was before 2.11: it does not ask whether an argument overrides it."""
    names = {**function.__globals__, "has_torch_function": lambda *_: False}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def test_attach_notices_that_backward_no_longer_passes_the_engine(monkeypatch, unproved):
    monkeypatch.setattr(torch.autograd, "backward", _without_dispatch(torch.autograd.backward))
    with pytest.raises(RuntimeError, match="subtracts the mean of the batch was not refused"):
        gradients.attach(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="was not refused"):  # every time, not only the first
        gradients.attach(nn.Linear(2, 2))


def test_the_proof_runs_once_and_draws_no_random_number(monkeypatch, unproved):
    runs = []
    monkeypatch.setattr(self_test, "_prove", lambda record, prove=self_test._prove: (runs.append(1), prove(record)))
    state = torch.get_rng_state()
    gradients.attach(nn.Linear(2, 2).requires_grad_(True)).detach()
    model = nn.Linear(2, 2)
    after = torch.get_rng_state()
    gradients.attach(model).detach()
    assert runs == [1]
    torch.set_rng_state(state)
    nn.Linear(2, 2), nn.Linear(2, 2)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")])
def test_the_proof_holds_wherever_attach_is_called(unproved, around):
    model = nn.Linear(2, 2)
    with around():
        engine = gradients.attach(model)
    engine.detach()
    assert self_test._STATE["proved"]
