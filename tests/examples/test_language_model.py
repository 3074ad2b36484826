"""The language model example, small: a base model in safetensors, LoRA with and without privacy, its figures."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed (extra 'hf')")
pytest.importorskip("peft", reason="peft is not installed (extra 'hf')")

ROOT = Path(__file__).parents[2]
WORDS = "the prince of night and day in fair verona where we lay our scene from ancient grudge break to new mutiny"


def example_named(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def lm() -> ModuleType:
    torch.set_num_threads(1)
    return example_named("language_model")


def test_a_base_model_is_tuned_privately_and_without_privacy(
    lm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm.pretrain(tmp_path / "base", steps=2, text="\n".join([WORDS] * 60))
    assert (tmp_path / "base" / "model.safetensors").exists()
    places = [
        (f"{name}, {area}:", f" {name} is in {area}.") for name in "abcdefgh" for area in ("city", "town", "park")
    ]
    monkeypatch.setattr(lm, "sentences", lambda task: (places, places[:8]))
    monkeypatch.setitem(lm.LENGTHS, "restaurants", 24)
    ends = {}
    for epsilon in (0.0, 8.0):
        found = lm.tune(tmp_path / "base", "restaurants", epsilon, out=tmp_path / str(epsilon), records=24, epochs=1)
        assert found["perplexity"] > 1 and math.isfinite(found["perplexity"]) and found["steps"] >= 1
        assert 0 <= found["bleu"] <= 100
        ends[epsilon] = found
    assert ends[0.0]["epsilon"] == 0 and 0 < ends[8.0]["epsilon"] <= 8.0 and ends[8.0]["noise_multiplier"] > 0


def test_bleu_is_that_of_papineni(lm: Any) -> None:
    """Against numbers made by hand: all four precisions are 1, 4/5·3/4·2/3·1/2, and a short text is punished."""
    assert lm.bleu(["a b c d e"], [["a b c d e", "x"]]) == pytest.approx(100)
    product = 4 / 5 * 3 / 4 * 2 / 3 * 1 / 2
    assert lm.bleu(["a b c d x"], [["a b c d e"]]) == pytest.approx(100 * product ** (1 / 4))
    assert lm.bleu(["a b c d"], [["a b c d e"]]) == pytest.approx(100 * math.exp(1 - 5 / 4))
    assert lm.bleu(["q r s t"], [["a b c d"]]) == 0


def test_only_the_sentence_has_labels(lm: Any, tmp_path: Path) -> None:
    lm.pretrain(tmp_path, steps=1, text="\n".join([WORDS] * 60))
    words = lm.transformers.AutoTokenizer.from_pretrained(tmp_path)
    row = lm.Sentences([("the prince:", " of night")], words, 20)[0]
    assert [len(row[name]) for name in ("input_ids", "attention_mask", "labels")] == [20] * 3
    kept = [token for token in row["labels"] if token != -100]
    assert words.decode(kept) == " of night<end>"


def test_the_page_has_a_row_for_every_budget_and_both_texts() -> None:
    page = (ROOT / "docs" / "language-model.md").read_text()
    for task in ("restaurants", "reviews"):
        rows = re.findall(rf"^\| {task} \| ([^|]+) \| ", page, re.MULTILINE)
        assert [row.strip() for row in rows] == ["before", "ε = 1", "ε = 3", "ε = 8", "no privacy"]


@pytest.mark.parametrize("kind", ["ngrams", "transformer"])
@pytest.mark.parametrize("epsilon", [pytest.param(0.0, marks=pytest.mark.slow), 8.0])
def test_the_text_classifiers_learn_within_their_budget(kind: str, epsilon: float) -> None:
    example = example_named("text_classifier")
    torch.manual_seed(0)
    lines = [f"a {'good' if i % 2 else 'bad'} film" for i in range(400)]
    x = example.encoded(kind, lines, 8)
    y = torch.arange(400) % 2
    changed = {"bits": 8, "epochs": 10, "lot_size": 100, "rate": 0.5, "clip": 1.0}
    model, spent = example.train(kind, x, y, epsilon, **changed)
    assert spent <= epsilon and example.accuracy(model, x, y) > 0.9
    assert int(example.encoded("transformer", lines, 8)[0, 1]) == example.hashed("film", 8)


def test_the_table_of_text_classifiers_has_the_settings_of_the_example() -> None:
    example = example_named("text_classifier")
    page = (ROOT / "docs" / "accuracy.md").read_text()
    for kind, settings in example.SETTINGS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{kind}`"))
        assert f"{1 << settings['bits']:,} hashed" in row and f"{settings['epochs']} epochs" in row
        assert f"lots of {settings['lot_size']:,}" in row and settings["clip"] == 1.0
        figures = [float(cell) for cell in row.split("|")[2:6]]
        assert figures == sorted(figures) and figures[0] > 50 and figures[-1] < 100
