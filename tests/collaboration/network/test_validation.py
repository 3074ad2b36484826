"""Public records are of the participants' kind, or refused; accuracy on them is shown for what it is worth."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from collaboration.network.helpers import Place, agreement
from tacit.cli import main
from tacit.collaboration import LocalDpSgd, Settings
from tacit.collaboration.network import Agreement, Link, Service, find_shards
from tacit.collaboration.network.hosting import Terms, open_state
from tacit.collaboration.network.joining import agreed_settings, join
from tacit.collaboration.network.judge import judge_of
from tacit.collaboration.network.metrics import facts
from tacit.collaboration.network.records import normalised, public_records, training_records
from tacit.collaboration.network.status import Access, StatusPage

Serve = Callable[..., Place]
Connect = Callable[..., Link]
TERMS = Terms(model="mlp", bound=1.0, upload=0.1)


def pictures(side: int, count: int = 60, channels: int = 1) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(side)
    images = rng.integers(0, 256, size=(count, channels, side, side), dtype=np.uint8)
    return torch.from_numpy(images), torch.arange(count) % 10


def test_a_participant_whose_images_have_another_size_sends_and_charges_nothing(
    serve: Serve, link: Connect, records: Path, tmp_path: Path
) -> None:
    """Digits of 8×8 used to validate a model of 12×12 images, and to set what they are normalised by."""
    place = serve(open_state(tmp_path / "server", TERMS, ["ann"], pictures(8)))
    assert place.service.agreement.shape == (1, 8, 8)
    shards = find_shards([link(place.address, "ann")])
    own = Settings(participants=1, epochs=1, privacy=LocalDpSgd(epsilon=4.0, delta=1e-5))
    settings = agreed_settings(shards[0].agreement, own)
    with pytest.raises(ValueError, match=r"the images here are 1×12×12, but the collaboration is about 1×8×8.*Nothing"):
        join(shards, "ann", None, training_records(str(records)), tmp_path / "ann", settings)
    assert place.service.parameters()[0] == 0
    assert not (tmp_path / "ann").exists()


def test_public_records_of_another_size_are_refused_whenever_a_server_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the public records are 1×8×8, but the collaboration is about 1×28×28"):
        open_state(tmp_path / "a", Terms(model="mlp", shape=(1, 28, 28)), [], pictures(8))
    open_state(tmp_path / "b", TERMS, [], pictures(28)).close()
    for public in (pictures(8), pictures(28, channels=3)):
        with pytest.raises(ValueError, match=r"the public records are .*, but the collaboration is about 1×28×28"):
            open_state(tmp_path / "b", Terms(), [], public)
    open_state(tmp_path / "b", Terms(), [], pictures(28, count=30)).close()
    with pytest.raises(ValueError, match="shape is \\(1, 8, 8\\), but the collaboration began with \\(1, 28, 28\\)"):
        open_state(tmp_path / "b", Terms(shape=(1, 8, 8)), [], None)


def test_public_records_need_a_size_to_be_compared_with(tmp_path: Path, serve: Serve) -> None:
    store = open_state(tmp_path / "a", TERMS, ["ann"], None)
    service = Service(store)
    assert service.agreement.shape == ()
    with pytest.raises(ValueError, match="began without the size of its images"):
        judge_of(service, pictures(28))
    service.close()
    with pytest.raises(ValueError, match="began without the size of its images"):
        open_state(tmp_path / "a", Terms(), [], pictures(28))


def test_public_records_with_one_label_say_nothing(tmp_path: Path) -> None:
    images, labels = pictures(28)
    with pytest.raises(ValueError, match="all public records have the same label"):
        open_state(tmp_path, TERMS, [], (images, torch.zeros_like(labels)))


def test_a_size_without_public_records(tmp_path: Path) -> None:
    store = open_state(tmp_path / "a", Terms(model="mlp", shape=(3, 32, 32)), [], None)
    assert (store.agreement.shape, store.agreement.mean, store.agreement.std) == ((3, 32, 32), (0.0,) * 3, (1.0,) * 3)
    assert store.agreement.parameters == 402_250
    store.close()


@pytest.mark.parametrize("image", [[28, 28], [0, 28, 28], [1, 28, 28, 1], [3, 28, 28], ["x", 1, 1], None])
def test_a_size_in_an_agreement_is_read_with_care(image: Any) -> None:
    text = json.dumps(json.loads(agreement().to_json()) | {"shape": image})
    with pytest.raises(ValueError, match=r"shape|malformed|invalid literal"):
        Agreement.from_json(text)
    good = agreement(shape=(1, 28, 28))
    assert Agreement.from_json(good.to_json()) == good


def test_accuracy_on_records_of_the_task_is_the_models_own(take_part: Callable[..., Any], records: Path) -> None:
    """The first half of the records judges a model that was trained with all of them."""
    stand, place = take_part(None, epochs=6)
    images, labels = public_records(str(records))
    judge = judge_of(place.service, (images[:200], labels[:200]), name="records.npz")
    agreed = place.service.agreement
    with torch.no_grad():
        answers = stand.model.eval()(normalised(images[:200], agreed.mean, agreed.std)).argmax(dim=1)
    own = float((answers == labels[:200]).float().mean())
    assert judge.look() == pytest.approx(own) and own > 0.6
    told = facts(place.service, judge, 0.0)["validation"]
    share = int(torch.bincount(labels[:200]).max()) / 200
    assert told == {"name": "records.npz", "records": 200, "chance": share}


def test_accuracy_at_chance_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(open_state(tmp_path, TERMS, ["ann"], pictures(28)))
    judge, other = (judge_of(service, pictures(28), name="strangers") for _ in range(2))
    uploads = [0]
    start = service.parameters()[1]
    monkeypatch.setattr(service, "parameters", lambda: (uploads[0], start))
    with caplog.at_level(logging.WARNING):
        for uploads[0] in (0, 10, 29):
            judge.look()
        assert caplog.text == ""  # it may still learn
        for uploads[0] in (30, 31, 32):
            judge.look()
        monkeypatch.setattr(other, "chance", -1.0)  # one that does better than chance is not doubted
        monkeypatch.setattr("tacit.collaboration.network.judge.math.sqrt", lambda value: 0.0)
        uploads[0] = 50
        other.look()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "the accuracy on strangers is" in said and "not of the participants' task" in said
    service.close()


def test_the_page_gets_what_accuracy_is_measured_on(tmp_path: Path) -> None:
    service = Service(open_state(tmp_path, TERMS, ["ann"], pictures(28)))
    page = StatusPage(service, judge_of(service, pictures(28), name="<b>public</b>"), Access(port=0))
    page.start()
    try:
        with urllib.request.urlopen(page.address + "status.json", timeout=10) as answer:
            told = json.load(answer)["validation"]
        with urllib.request.urlopen(page.address, timeout=10) as answer:
            shown = answer.read().decode()
    finally:
        page.stop()
        service.close()
    assert told == {"name": "<b>public</b>", "records": 60, "chance": 0.1}
    assert 'id="measured"' in shown and 'at("measured").textContent' in shown  # as text, whatever it is called


@pytest.mark.parametrize(
    ("image", "sentence"),
    [("28", "write numbers above 0"), ("0x28", "write numbers above 0"), ("axb", "'a' is not a whole number"),
     ("1x2x3x4", "write numbers above 0"), ("2x28x28", "the paper's networks take 1 or 3")],
)  # fmt: skip
def test_sizes_on_the_command_line(
    image: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["collaborate", "serve", "--state", str(tmp_path / "s"), "--model", "mlp", "--insecure-loopback",
              "--shape", image])  # fmt: skip
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
