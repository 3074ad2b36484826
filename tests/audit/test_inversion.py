"""Records from gradients: all of one without noise, nothing with it."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tacit.audit.inversion import guess_label, invert_linear, likeness, search
from tacit.cli import main
from tacit.collaboration.inversion import invert_uploads


def gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, 5))


def test_one_record_is_read_off_a_linear_layer(model: nn.Module) -> None:
    x, y = torch.rand(1, 1, 6, 6), torch.tensor([3])
    weight, bias, _, last = gradients(model, x, y)
    assert torch.allclose(invert_linear(weight, bias), x.flatten(), atol=1e-5)
    assert guess_label(last) == 3


def test_entries_that_were_not_uploaded_are_left_out(model: nn.Module) -> None:
    x, y = torch.rand(1, 1, 6, 6), torch.tensor([0])
    weight, bias, *_ = gradients(model, x, y)
    hidden = weight.clone()
    hidden[torch.rand(hidden.shape) < 0.7] = torch.nan
    hidden[:, 4] = torch.nan
    found = invert_linear(hidden, bias)
    assert found[4] == 0
    kept = torch.arange(36) != 4
    assert torch.allclose(found[kept], x.flatten()[kept], atol=1e-5)


def test_several_records_give_their_mixture(model: nn.Module) -> None:
    x, y = torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 3])
    found = invert_linear(*gradients(model, x, y)[:2])
    assert max(likeness(found, picture) for picture in x) < 0.999


def test_search_finds_the_input_of_a_convolution() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(96, 5))
    x = torch.zeros(1, 1, 6, 6)
    x[:, :, 1:4, 2:5] = 1
    upload = gradients(net, x, torch.tensor([2]))
    label = guess_label(upload[-1])
    found = search(net, upload, shape=(1, 6, 6), label=label, steps=150, generator=torch.Generator().manual_seed(0))
    assert label == 2 and likeness(found, x) > 0.95


def test_selection_hides_little_and_noise_hides_the_record() -> None:
    torch.set_num_threads(1)
    whole, tenth, private = invert_uploads(fractions=(1.0, 0.1), epsilons=(1.0,), images=2, steps=20, seed=1)
    assert whole.linear > 0.999 and whole.epsilon is None
    assert tenth.linear > 0.9
    assert abs(private.linear) < 0.35 and abs(private.search) < 0.35
    assert "nothing is promised" in str(tenth) and "ε = 1" in str(private)


def test_the_command_inverts_uploads(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.collaboration import inversion

    real = invert_uploads
    monkeypatch.setattr(
        inversion, "invert_uploads", lambda seed: real(fractions=(1.0,), epsilons=(), images=1, steps=2)
    )
    with pytest.raises(SystemExit) as stop:
        main(["audit", "--attack", "uploads", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0 and facts["uploads"][0]["linear"] > 0.999
