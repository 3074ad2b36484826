"""A participant: download, overwrite, train, upload."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tacit.collaboration import (
    Download,
    FlatParameters,
    Largest,
    LocalSgd,
    ParameterServer,
    Participant,
    Rules,
    SelectedUploads,
)
from tacit.collaboration.participant import inside
from tacit.randomness import SecureSource

SOURCE = SecureSource()


def participant(model: nn.Module, moves: dict[int, float], *, fraction: float = 1.0, bound: float = 1.0) -> Participant:
    """One whose training adds fixed numbers to fixed parameters."""
    flat = FlatParameters(model)

    def train() -> None:
        for place, move in moves.items():
            flat.vector[place] += move

    uploads = SelectedUploads(Largest(fraction=fraction), bound=bound, source=SOURCE)
    return Participant("ann", flat, train, uploads)


def test_parameters_are_one_vector_in_the_order_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    model[1].bias.requires_grad_(False)
    expected = torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad]).numpy().copy()
    flat = FlatParameters(model)
    assert flat.vector.tolist() == expected.tolist()
    assert [name for name, _ in flat.layout] == ["0.weight", "0.bias", "1.weight", "2.weight", "2.bias"]
    flat.vector[:] = np.arange(flat.vector.size)
    assert model[0].weight.tolist() == [[0, 1, 2], [3, 4, 5]] and model[2].bias.tolist() == [12]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    assert flat.vector[-1] == 12 - 4  # what the optimizer does is seen in the vector


def test_models_that_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        FlatParameters(nn.ReLU())
    with pytest.raises(ValueError, match=r"parameter weight is torch.float64"):
        FlatParameters(nn.Linear(2, 2).double())


def test_an_epoch() -> None:
    ann = participant(nn.Linear(3, 2), {0: 0.5, 3: -2.0, 7: 0.125}, fraction=0.25)
    local = ann.parameters.vector.copy()
    ann.begin(Download(indices=np.array([1, 3]), values=np.array([10, 20], dtype=np.float32)))
    expected = local.copy()
    expected[[1, 3]] = [10, 20]
    assert ann.parameters.vector.tolist() == expected.tolist()
    ann.train()
    upload = ann.finish()
    assert (upload.participant, upload.sequence) == ("ann", 0)
    assert upload.indices.tolist() == [0, 3]
    assert upload.values.dtype == np.float32 and upload.values[1] == -1.0  # bounded
    assert upload.values[0] == pytest.approx(0.5, abs=1e-6)
    assert upload.size == 16
    ann.begin(Download(indices=None, values=np.zeros(8, dtype=np.float32)))
    ann.train()
    again = ann.finish()
    assert again.sequence == 1 and ann.sequence == 2
    assert ann.parameters.vector.tolist() == [0.5, 0, 0, -2.0, 0, 0, 0, 0.125]


def test_everything_can_be_uploaded() -> None:
    ann = participant(nn.Linear(3, 2), {0: 0.5})
    ann.begin(Download(indices=None, values=np.zeros(8, dtype=np.float32)))
    ann.train()
    upload = ann.finish()
    assert upload.indices is None and upload.size == 32 and upload.values.tolist() == [0.5] + [0] * 7


def test_training_that_diverges_uploads_no_poison() -> None:
    ann = participant(nn.Linear(3, 2), {0: np.nan, 1: np.inf, 2: 0.25}, fraction=0.25)
    ann.begin(Download(indices=None, values=np.zeros(8, dtype=np.float32)))
    ann.train()
    upload = ann.finish()
    assert dict(zip(upload.indices.tolist(), upload.values.tolist(), strict=True))[2] == 0.25
    assert np.isfinite(upload.values).all()


def test_a_participant_refuses_to_finish_before_a_download_or_to_load_a_wrong_size() -> None:
    ann = participant(nn.Linear(3, 2), {})
    with pytest.raises(RuntimeError, match="begin with a download"):
        ann.finish()
    with pytest.raises(ValueError, match="the download has 3 values, the model 8"):
        ann.begin(Download(indices=None, values=np.zeros(3, dtype=np.float32)))


@pytest.mark.parametrize("bound", [0.1, 0.001, 0.3, 1.0, 1e-9])
def test_a_bounded_value_passes_the_server(bound: float) -> None:
    """0.1 in float32 is more than 0.1."""
    assert float(inside(bound)) <= bound
    assert float(np.nextafter(inside(bound), np.float32(2))) > bound
    ann = participant(nn.Linear(3, 2), {0: 5.0, 1: -5.0}, bound=bound)
    ann.begin(Download(indices=None, values=np.zeros(8, dtype=np.float32)))
    ann.train()
    upload = ann.finish()
    server = ParameterServer(np.zeros(8, dtype=np.float32), Rules(bound=bound), ["ann"])
    server.push(upload.participant, upload.sequence, upload.indices, upload.values)


def test_local_sgd_is_sgd_with_a_falling_rate() -> None:
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(10) % 2
    model, naive = nn.Linear(3, 2), nn.Linear(3, 2)
    naive.load_state_dict(model.state_dict())
    train = LocalSgd(
        model,
        TensorDataset(x, y),
        learning_rate=0.5,
        decay=0.1,
        batch_size=4,
        generator=torch.Generator().manual_seed(9),
    )
    train()
    train()
    generator, step = torch.Generator().manual_seed(9), 0
    for _ in range(2):
        order = torch.randperm(10, generator=generator)
        for rows in (order[:4], order[4:8], order[8:]):
            gradients = torch.autograd.grad(nn.functional.cross_entropy(naive(x[rows]), y[rows]), [*naive.parameters()])
            with torch.no_grad():
                for parameter, gradient in zip(naive.parameters(), gradients, strict=True):
                    parameter -= 0.5 / (1 + 0.1 * step) * gradient
            step += 1
    torch.testing.assert_close(model.weight, naive.weight)
    torch.testing.assert_close(model.bias, naive.bias)
