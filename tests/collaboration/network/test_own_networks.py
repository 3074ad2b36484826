"""A network, records and a loss of one's own: any that PyTorch has, agreed on before anything is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tacit.cli import main
from tacit.collaboration import GaussianPrivacy, LocalDpSgd, join, serve
from tacit.collaboration.architecture import Architecture
from tacit.collaboration.network import Agreement
from tacit.collaboration.network.running import Server

INPUTS = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS @ torch.tensor([1.0, -2.0, 0.5, 0.0, 0.0, 3.0])


class Regression(nn.Module):
    """A network with a buffer and two inputs."""

    def __init__(self, hidden: int = 8, activation: type[nn.Module] = nn.Tanh, scale: float = 2.0) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((1,), scale))
        self.layers = nn.Sequential(nn.Linear(6, hidden), activation(), nn.Linear(hidden, 1))

    def forward(self, inputs: Tensor, weight: Tensor) -> Tensor:
        return self.layers(inputs * self.scale)[:, 0] * weight


class Measurements(Dataset[Any]):
    """Records one by one: two inputs and a target that is no class."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, place: int) -> tuple[Tensor, float, Tensor]:
        return INPUTS[place], 1.0, TARGETS[place]


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def begin(**options: Any) -> Server:
        listen = {"listen": "127.0.0.1:0", "admit": ["ann"], "protocol": "asynchronous", "upload": 1.0, "bound": 1.0}
        servers.append(serve(tmp_path / f"server{len(servers)}", **{"network": Regression, **listen, **options}))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def take_part(server: Server, folder: Path, **options: Any) -> Any:
    own = {"network": Regression, "dataset": Measurements(), "loss": squared, "privacy": None, "epochs": 2}
    return join(server.address, name="ann", folder=folder, **{**own, "learning_rate": 0.05, **options})


PRIVACY = [None, LocalDpSgd(epsilon=8.0, delta=1e-5), GaussianPrivacy(epsilon=50.0, delta=1e-5, clip_norm=0.5)]


@pytest.mark.parametrize("privacy", PRIVACY)
def test_any_network_records_and_loss_take_part(start: Callable[..., Server], tmp_path: Path, privacy: Any) -> None:
    server = start()
    before = server.service.parameters()[1]
    stand = take_part(server, tmp_path / "ann", privacy=privacy)
    assert stand.uploads == 2 and (stand.claim is None) == (privacy is None)
    assert not np.array_equal(before, server.service.parameters()[1])
    if privacy is None:
        trained = float(squared(stand.model(INPUTS, torch.ones(120)), TARGETS).detach())
        assert trained < float(TARGETS.square().mean())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"network": lambda: Regression(hidden=9)}, r"layers\.0 is Linear\(in_features=6, out_features=9.*there"),
        ({"network": lambda: Regression(activation=nn.ReLU)}, r"here module layers\.1 is ReLU\(\), there .*Tanh"),
        ({"network": lambda: Regression(scale=3.0)}, "scale, which is not trained, has other values there"),
        ({"network": lambda: nn.Sequential(Regression())}, "the network here is not the collaboration's"),
        ({"network": None}, "a network of its own, .*Regression; build it here"),
        ({"dataset": (INPUTS, TARGETS)}, "does not take these records, whose inputs have the shape"),
        ({"dataset": (INPUTS[:, :5], torch.ones(120), TARGETS)}, r"inputs of shape \(5,\), but .* about \(6,\)"),
        ({"dataset": iter([])}, "give one with a length"),
        ({"dataset": [INPUTS[0]]}, "must be a tuple"),
        ({"loss": lambda outputs, targets: outputs - targets}, r"tensor of shape \(4,\); it must return the mean"),
        ({"loss": lambda outputs, targets: (outputs - targets.mean()).square().mean()}, "no per-example gradients"),
        ({"privacy": None}, "agreed on dp-sgd uploads, and yours would be plain"),
        ({"privacy": GaussianPrivacy(epsilon=1.0, delta=1e-6, clip_norm=0.5)}, "yours would be gaussian"),
        ({"privacy": LocalDpSgd(epsilon=8.0, delta=1e-5)}, "ε = 4 at most for each, and yours is 8"),
        ({"privacy": LocalDpSgd(epsilon=4.0, delta=1e-4)}, "δ = 1e-05 at most for each, and yours is 0.0001"),
    ],
)
def test_a_difference_is_explained_before_anything_is_sent(
    start: Callable[..., Server], tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    server = start(mechanism="dp-sgd", epsilon=4.0, delta=1e-5, shape=(6,))
    own = {"privacy": LocalDpSgd(epsilon=4.0, delta=1e-5), **options}
    with pytest.raises(ValueError, match=sentence):
        take_part(server, tmp_path / "ann", **own)
    assert server.service.parameters()[0] == 0
    assert not (tmp_path / "ann" / "ledger.jsonl").exists()


def test_others_need_not_wait_for_a_participant_that_is_done(start: Callable[..., Server], tmp_path: Path) -> None:
    """With the long patience that docs/collaboration.md advises, the last rounds are not slower than the first."""
    server = start(protocol="round-robin", patience=600.0, admit=["ann", "bob"])

    def bob() -> None:
        join(server.address, name="bob", folder=tmp_path / "bob", network=Regression, dataset=Measurements(),
             loss=squared, privacy=None, epochs=3)  # fmt: skip

    other = threading.Thread(target=bob, daemon=True)
    other.start()
    take_part(server, tmp_path / "ann", epochs=1)
    other.join(timeout=60)
    assert not other.is_alive() and server.service.parameters()[0] == 4


def test_uploads_without_noise_break_a_promised_budget(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start(epsilon=4.0)
    with pytest.raises(ValueError, match="have no noise"):
        take_part(server, tmp_path / "ann")


def test_a_server_that_is_started_again_compares_the_network(tmp_path: Path) -> None:
    serve(tmp_path, network=Regression, listen="127.0.0.1:0", admit=["ann"]).stop()
    serve(tmp_path, listen="127.0.0.1:0").stop()  # it needs no network to go on
    serve(tmp_path, network=lambda: Regression(), listen="127.0.0.1:0").stop()
    with pytest.raises(ValueError, match="ReLU"):
        serve(tmp_path, network=lambda: Regression(activation=nn.ReLU), listen="127.0.0.1:0")
    with pytest.raises(ValueError, match="began with"):
        serve(tmp_path, network=Regression, listen="127.0.0.1:0", epsilon=3.0)


def test_architectures_tell_random_constants_apart_and_forgive_rounding() -> None:
    def features(seed: int, noise: float = 0.0) -> nn.Module:
        model = nn.Sequential(nn.Linear(50, 4000), nn.ReLU(), nn.Linear(4000, 2))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            model[0].weight.copy_(torch.randn(4000, 50, generator=generator))
            model[0].weight.mul_(1 + noise)
        model[0].weight.requires_grad_(False)
        return model

    first = Architecture.of(features(1))
    assert first.difference(Architecture.of(features(1))) is None
    assert first.difference(Architecture.of(features(1, noise=1e-6))) is None
    assert "0.weight" in (first.difference(Architecture.of(features(2))) or "")
    assert first.digest != Architecture.of(nn.Linear(2, 2)).digest


def test_an_agreement_of_a_hostile_server_is_refused(start: Callable[..., Server]) -> None:
    facts = json.loads(start().agreement.to_json())
    assert Agreement.from_json(json.dumps(facts)).own_network
    for change in (
        {"architecture": {"lines": ["\x1b[2J"], "constants": []}},
        {"architecture": {"lines": [], "constants": [{"name": "a", "size": 1e999, "projection": 0}]}},
        {"architecture": []},
        {"mechanism": "none at all"},
        {"epsilon": -1},
        {"shape": [0]},
    ):
        with pytest.raises(ValueError, match=r"\.$"):
            Agreement.from_json(json.dumps({**facts, **change}))


TABLE_MODULE = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

def records():
    import torch
    return torch.randn(40, 3), torch.arange(40) % 2
"""
SCHEMA = {
    "target": "ill",
    "columns": {
        "age": {"type": "number", "low": 0, "high": 100},
        "sex": {"type": "category", "values": ["f", "m"]},
        "ill": {"type": "category", "values": ["no", "yes"]},
    },
}


def test_the_commands_take_a_module_a_table_and_a_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ward.py").write_text(TABLE_MODULE)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    other = json.loads(json.dumps(SCHEMA).replace("100", "120"))
    (tmp_path / "other.json").write_text(json.dumps(other))
    rows = [f"{20 + place},{'fm'[place % 2]},{'no' if place % 3 else 'yes'}" for place in range(60)]
    (tmp_path / "north.csv").write_text("\n".join(["age,sex,ill", *rows]))

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["collaborate", *arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    from tacit.cli.own_code import imported, schema_text

    server = serve(
        "run",
        network=imported("--model", "ward:build"),
        listen="127.0.0.1:0",
        admit=["north"],
        upload=1.0,
        schema=schema_text(Path("schema.json")),
    )
    try:
        own = ["join", "--server", server.address, "--name", "north", "--insecure-loopback", "--without-noise"]
        own += ["--model", "ward:build", "--epochs", "2", "--json"]
        code, out, _ = run(*own, "--data", "north.csv", "--schema", "schema.json")
        assert code == 0 and json.loads(out)["uploads"] == 2
        for arguments, sentence in (
            (["--data", "north.csv"], "say --schema FILE"),
            (["--data", "north.csv", "--schema", "other.json"], "columns.age.high is 120.0 here and 100.0 there"),
            (["--data", "ward:records"], "give yours: --schema FILE"),
            (["--data", "ward:nothing"], "ward has no nothing"),
            (["--data", "nowhere:records"], "nowhere cannot be imported"),
        ):
            code, _, error = run(*own, *arguments)
            assert code == 2 and sentence in " ".join(error.split()), error
    finally:
        server.stop()
