"""Float32 products are exact while a run lasts, and devices without a proof are refused before any charge."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from tacit.gradients.float32_settings import coarse
from tacit.gradients.precision import check_precision
from tacit.training import arithmetic
from tacit.tuning import median_gradient_norm

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NEW = {
    "cuda.matmul": torch.backends.cuda.matmul,
    "cudnn.conv": torch.backends.cudnn.conv,
    "cudnn.rnn": torch.backends.cudnn.rnn,
    "mkldnn.matmul": torch.backends.mkldnn.matmul,
    "mkldnn.conv": torch.backends.mkldnn.conv,
    "mkldnn.rnn": torch.backends.mkldnn.rnn,
}


@pytest.fixture(autouse=True)
def _settings_are_put_back() -> Iterator[None]:
    gc.collect()  # runs that other tests dropped without closing them
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    for setting in NEW.values():
        setting.fp32_precision = "none"
    for name in ("cudnn.conv", "cudnn.rnn"):
        NEW[name].fp32_precision = "tf32"


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is taken to be on a GPU; the switches exist without one."""
    monkeypatch.setattr(arithmetic, "devices", lambda model: [CUDA])


def settings() -> dict[str, Any]:
    return {name: setting.fp32_precision for name, setting in NEW.items()}


def test_pytorch_defaults_on_cuda_are_made_exact_for_the_run_and_put_back(
    make: Any, train: Any, on_cuda: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = settings()
    assert coarse(CUDA) == [
        'torch.backends.cudnn.conv.fp32_precision = "ieee"',
        'torch.backends.cudnn.rnn.fp32_precision = "ieee"',
    ]
    _, _, run = make()
    assert not coarse(CUDA) and not torch.backends.cudnn.allow_tf32  # which fails where old and new forms differ
    assert 'torch.backends.cudnn.conv.fp32_precision = "ieee"' in caplog.text
    train(run)
    run.close()
    assert settings() == before and torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    "choose",
    [
        "torch.set_float32_matmul_precision('high')",
        "torch.set_float32_matmul_precision('medium')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cudnn.allow_tf32 = True",
        "torch.backends.cudnn.conv.fp32_precision = 'tf32'",
        "torch.backends.cudnn.rnn.fp32_precision = 'tf32'",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
        "torch.backends.mkldnn.conv.fp32_precision = 'bf16'",
        "torch.backends.mkldnn.rnn.fp32_precision = 'tf32'",
        "torch.backends.cudnn.fp32_precision = 'tf32'",
        "torch.backends.fp32_precision = 'tf32'",
    ],
)
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_every_switch_is_exact_in_a_run_and_put_back_after_it(
    make: Any, monkeypatch: pytest.MonkeyPatch, device: torch.device, choose: str
) -> None:
    monkeypatch.setattr(arithmetic, "devices", lambda model: [device])
    torch.backends.cudnn.allow_tf32 = False
    exec(choose)
    before = settings()
    needed = coarse(device)
    _, _, run = make()
    assert not coarse(device)
    run.close()
    assert settings() == before
    for statement in needed:  # the advice is what PyTorch accepts, and enough
        exec(statement)
    assert not coarse(device)


class Recording(nn.Module):
    """A model that notes, whenever it runs, which switches let its products be coarse."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.seen = kind, []
        if kind == "recurrent":
            self.layer: nn.Module = nn.LSTM(1, 3, batch_first=True)
        else:
            self.layer = nn.Conv1d(1, 3, 4) if kind == "convolution" else nn.Linear(4, 3)
        self.weight = nn.Parameter(torch.ones(3, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += coarse(CUDA)
        if self.kind == "recurrent":
            return self.layer(x.unsqueeze(2))[0][:, -1] + 0 * self.weight.sum()
        if self.kind == "convolution":
            return self.layer(x.unsqueeze(1)).flatten(1) + 0 * self.weight.sum()
        if self.kind == "convolution without a layer":
            return self.layer(x) + nn.functional.conv1d(x.unsqueeze(1), self.weight).flatten(1)
        return self.layer(x) + 0 * self.weight.sum()


@pytest.mark.parametrize("kind", ["matrix product", "convolution", "convolution without a layer", "recurrent"])
def test_every_kind_of_product_is_exact_before_the_first_charge_and_in_every_pass(
    make: Any, train: Any, on_cuda: None, tmp_path: Any, kind: str
) -> None:
    """With PyTorch's defaults on CUDA, where convolutions and recurrent layers are coarse."""
    before, model = settings(), Recording(kind)
    assert coarse(CUDA)
    _, _, run = make(model, ledger=tmp_path / "ledger.jsonl", steps=1)
    assert not coarse(CUDA) and not len(run.ledger)
    train(run)
    assert len(run.ledger) == 1 and not model.seen
    run.close()
    assert settings() == before and torch.backends.cudnn.allow_tf32


def test_runs_that_overlap_stay_exact(make: Any, on_cuda: None) -> None:
    before = settings()
    first, second = make()[2], make()[2]
    first.close()
    assert not coarse(CUDA)
    second.close()
    assert settings() == before


def test_a_refused_run_puts_the_switches_back(make: Any, on_cuda: None) -> None:
    before = settings()
    with pytest.raises(ValueError, match="statistics of the whole batch"):
        make(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    assert settings() == before


def test_a_switch_changed_in_the_middle_is_refused_with_a_statement_that_works(make: Any) -> None:
    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    with pytest.raises(ValueError, match="may be rounded to fewer bits") as caught:
        check_precision(CPU)
    exec(str(caught.value).rpartition("make them exact: ")[2].rstrip("."))
    check_precision(CPU)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("mps", "the model is on 'mps', which has no float64"), ("meta", "the model is on 'meta' and has no values")],
)
def test_devices_without_a_proof_are_refused_before_any_charge(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, kind: str, message: str
) -> None:
    monkeypatch.setattr(arithmetic, "devices", lambda model: [CPU, torch.device(kind)])
    with pytest.raises(ValueError, match=message):
        make(ledger=tmp_path / "ledger.jsonl")
    assert not (tmp_path / "ledger.jsonl").exists()


def test_flushed_denormal_numbers_are_refused_before_any_charge(make: Any, tmp_path: Any) -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        with pytest.raises(ValueError, match="set_flush_denormal"):
            make(ledger=tmp_path / "ledger.jsonl")
    finally:
        torch.set_flush_denormal(False)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_gradient_norms_are_measured_exactly_whatever_the_switches(data: Any) -> None:
    torch.set_float32_matmul_precision("medium")
    ledger = tacit.Ledger()
    found = median_gradient_norm(nn.Linear(4, 3), data, ledger=ledger, low=0.1, high=10.0, noise_multiplier=1.0)
    assert 0.1 <= found <= 10.0 and torch.get_float32_matmul_precision() == "medium"


def test_the_devices_of_parameters_and_buffers_count() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("constant", torch.zeros(1, device="meta"))
    assert arithmetic.devices(model) == [CPU, torch.device("meta")]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "the compiled kernels are missing: no C compiler was found when tacit was installed"),
        (SimpleNamespace(wide=0), "the processor has no registers of 32 bytes for the compiled kernels"),
    ],
)
def test_missing_kernels_are_warned_about_and_are_in_the_statement(
    make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, found: Any, said: str
) -> None:
    monkeypatch.setattr(arithmetic, "kernels", found)
    with caplog.at_level(logging.WARNING, "tacit"):
        *_, run = make()
    assert said in caplog.text
    assert f"Kernels: {said}." in run.statement(1e-5)


def test_kernels_that_are_there_are_not_mentioned(
    make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(arithmetic, "kernels", SimpleNamespace(wide=1))
    with caplog.at_level(logging.WARNING, "tacit"):
        *_, run = make()
    assert "kernels" not in caplog.text and "Kernels:" not in run.statement(1e-5)


def test_a_model_off_the_cpu_does_without_the_compiled_kernels(monkeypatch: pytest.MonkeyPatch, on_cuda: None) -> None:
    monkeypatch.setattr(arithmetic, "kernels", None)
    assert arithmetic.missing_kernels(nn.Linear(1, 1)) is None
