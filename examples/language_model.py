"""Fine-tune a causal language model with LoRA on private text: restaurant descriptions, or film reviews.

    python examples/language_model.py pretrain runs/lm/base              # a public checkpoint, from Shakespeare
    python examples/language_model.py tune runs/lm/base restaurants 3.0  # ε = 3; 0 trains without privacy

The base model is loaded from a directory in safetensors, as any model of transformers is: a larger one works the same.
Every sentence is a record. The data sets are public, which is why the exact perplexity and the samples may be shown.
"""

from __future__ import annotations

import csv
import json
import math
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tacit
from tacit.data.places import places
from tacit.integrations.transformers import PrivateTrainer

LENGTHS = {"restaurants": 112, "reviews": 64}
EPOCHS, LOT, RATE, RANK = 2, 128, 5e-3, 8


def file_of(name: str) -> Path:
    """Return where a file of the shared data lies."""
    for place in places():
        if (place / name).exists():
            return place / name
    raise ValueError(f"{name} is not here; put it into a directory and set TACIT_DATA to that.")


# -- a public base model ---------------------------------------------------------------------------------------------


def pretrain(directory: Path, *, steps: int = 1500, text: str | None = None) -> None:
    """Train a tokenizer and a small model on Shakespeare, and store both."""
    text = file_of("text/tinyshakespeare.txt").read_text() if text is None else text
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        text.splitlines(),
        trainers.BpeTrainer(vocab_size=1024, special_tokens=["<pad>", "<end>"], initial_alphabet=alphabet),
    )
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>")
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.tensor(words(text)["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        starts = torch.randint(len(tokens) - 128, (16,))
        batch = torch.stack([tokens[start : start + 128] for start in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 250 == 0:
            print(f"pre-training: step {step}, loss {loss.item():.3f}", flush=True)
    model.save_pretrained(directory)
    words.save_pretrained(directory)


# -- private text ----------------------------------------------------------------------------------------------------


def sentences(task: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return pairs of prompt and sentence, to train on and to test with."""
    if task == "restaurants":
        found = []
        for name in ("devset", "testset_w_refs"):
            with file_of(f"e2e/{name}.csv").open(encoding="utf-8") as file:
                found.append([(f"{described(row['mr'])}:", f" {row['ref']}") for row in csv.DictReader(file)])
        return found[0], found[1]
    reviews = [
        ("", line.strip())
        for name in ("rt-polarity.pos", "rt-polarity.neg")
        for line in file_of(f"text/{name}").read_text(encoding="latin-1").splitlines()
    ]
    return [pair for i, pair in enumerate(reviews) if i % 10], reviews[::10]


def described(representation: str) -> str:
    """Return the values of a meaning representation.

    >>> described("name[Alimentum], area[city centre], familyFriendly[no]")
    'Alimentum, city centre, family no'
    """
    return re.sub(r"\w+\[(.*?)\]", r"\1", representation.replace("familyFriendly[", "x[family "))


class Sentences(torch.utils.data.Dataset[dict[str, Any]]):
    """Prompts and sentences as tokens of one length; only the sentence has labels."""

    def __init__(self, pairs: list[tuple[str, str]], words: Any, length: int) -> None:
        self.pairs, self.words, self.length = pairs, words, length

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> dict[str, Any]:
        prompt, sentence = self.pairs[i]
        before = self.words(prompt)["input_ids"] if prompt else []
        tokens = (before + self.words(sentence + "<end>")["input_ids"])[: self.length]
        padding = self.length - len(tokens)
        return {
            "input_ids": tokens + [0] * padding,
            "attention_mask": [1] * len(tokens) + [0] * padding,
            "labels": ([-100] * len(before) + tokens[len(before) :] + [-100] * padding)[: self.length],
        }


def perplexity(model: Any, data: Sentences) -> float:
    """Return exp of the mean loss of a token, over all labels of ``data``."""
    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(data), 64):
            rows = [data[i] for i in range(start, min(start + 64, len(data)))]
            batch = transformers.default_data_collator(rows)
            labels = int((batch["labels"][:, 1:] != -100).sum())
            total, count = total + float(model(**batch).loss) * labels, count + labels
    return math.exp(total / count)


def write(model: Any, words: Any, prompts: list[str]) -> list[str]:
    """Continue prompts, the likeliest token each time; an empty prompt begins with "the"."""
    model.eval()
    written = []
    for prompt in prompts:
        tokens = words(prompt or "the", return_tensors="pt")["input_ids"]
        made = model.generate(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=60, do_sample=False, pad_token_id=0
        )
        written.append(words.decode(made[0, tokens.shape[1] if prompt else 0 :], skip_special_tokens=True).strip())
    return written


def bleu(written: list[str], references: list[list[str]]) -> float:
    """Return the corpus BLEU-4 in per cent, of words split at spaces (Papineni et al. 2002)."""
    hits, totals, mine, theirs = [0] * 4, [0] * 4, 0, 0
    for candidate, known in zip(written, references, strict=True):
        own, others = candidate.lower().split(), [text.lower().split() for text in known]
        mine += len(own)
        theirs += min((abs(len(other) - len(own)), len(other)) for other in others)[1]
        for n in range(1, 5):
            grams = _grams(own, n)
            most: Counter[tuple[str, ...]] = Counter()
            for other in others:
                most |= _grams(other, n)
            hits[n - 1] += sum((grams & most).values())
            totals[n - 1] += sum(grams.values())
    if not all(hits):
        return 0.0
    precision = math.fsum(math.log(hit / total) for hit, total in zip(hits, totals, strict=True)) / 4
    return 100 * math.exp(precision + min(0.0, 1 - theirs / mine))


def _grams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


# -- fine-tuning -----------------------------------------------------------------------------------------------------


def tune(base: Path, task: str, epsilon: float, *, out: Path, records: int | None = None, epochs: int = EPOCHS) -> Any:
    """Fine-tune with LoRA at a budget (0: without privacy) and return what came of it."""
    torch.manual_seed(0)
    words = transformers.AutoTokenizer.from_pretrained(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    model = peft.get_peft_model(
        model, peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    pairs, held_out = sentences(task)
    train = Sentences(pairs[:records], words, LENGTHS[task])
    test = Sentences(held_out[::4][: records or None], words, LENGTHS[task])
    batch = min(64, len(train) // 4)
    args = transformers.TrainingArguments(
        str(out),
        num_train_epochs=epochs,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=max(1, min(LOT, len(train) // 4) // batch),
        learning_rate=RATE,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        logging_steps=20,
        use_cpu=True,
        disable_tqdm=True,
    )
    given: dict[str, Any] = {"model": model, "args": args, "train_dataset": train, "processing_class": words}
    given["data_collator"] = transformers.default_data_collator
    if epsilon:
        privacy = {"budget": tacit.Budget(epsilon, 0.1 / len(train)), "metrics": {"loss": tacit.Metric(bound=8.0)}}
        trainer = PrivateTrainer(**given, privacy=privacy)
    else:
        trainer = transformers.Trainer(**given)
    begun = time.process_time()
    if epochs:
        trainer.train()
    seconds, steps = time.process_time() - begun, trainer.state.global_step
    prompts = list(dict.fromkeys(prompt for prompt, _ in held_out))[: 40 if records is None else 4]
    written = write(model, words, prompts)
    known = [[text.strip() for prompt, text in held_out if prompt == one] for one in prompts]
    return {
        "task": task,
        "epsilon": epsilon if not epsilon or not epochs else trainer.run.guarantee().epsilon,
        "steps": steps,
        "noise_multiplier": trainer.run.noise_multiplier if epsilon else 0.0,
        "perplexity": perplexity(model, test),
        "bleu": bleu(written, known) if task == "restaurants" else None,
        "sample": written[0],
        "cpu_seconds_per_step": seconds / max(1, steps),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main(arguments: list[str]) -> None:
    """Run the command that the first argument names."""
    match arguments:
        case ["pretrain", base]:
            pretrain(Path(base))
        case ["tune", base, task, epsilon, *rest]:
            epochs = int(rest[0]) if rest else EPOCHS
            with tempfile.TemporaryDirectory() as out:
                print(json.dumps(tune(Path(base), task, float(epsilon), out=Path(out), epochs=epochs)), flush=True)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
