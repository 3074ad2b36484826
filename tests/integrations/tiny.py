"""Tiny models of transformers with random weights, a tokenizer made on the fly, and sentences for five tasks."""

from __future__ import annotations

from typing import Any

SENTENCES = [
    f"{who} {does} the {what} {when}"
    for who in ("ann", "bob", "eve")
    for does in ("likes", "hates")
    for what in ("film", "book", "song", "play")
    for when in ("today", "again")
]
LENGTH = 10
SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
}


def tokenizer() -> Any:
    """Words as tokens, learned from the sentences."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner.train_from_iterator(SENTENCES, trainers.WordLevelTrainer(special_tokens=special))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=inner, **{f"{name}_token": token for name, token in names.items()})


def task(name: str) -> tuple[Any, Any, Any]:
    """Return (model, data set, tokenizer) of a task."""
    import datasets
    import transformers

    words = tokenizer()
    rows = [dict(words(text, padding="max_length", max_length=LENGTH)) for text in SENTENCES]
    for row, text in zip(rows, SENTENCES, strict=True):
        row.pop("token_type_ids", None)
        real = [token if mask else -100 for token, mask in zip(row["input_ids"], row["attention_mask"], strict=True)]
        match name:
            case "causal" | "seq2seq":
                row["labels"] = real
            case "classification":
                row["labels"] = int("likes" in text)
            case "tokens":
                row["labels"] = [token % 3 if token >= 0 else -100 for token in real]
            case "answers":
                row["start_positions"], row["end_positions"] = 2, 3
    size = {**SIZES, "vocab_size": len(words)}
    match name:
        case "causal":
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, num_key_value_heads=1))
        case "classification":
            model = transformers.DistilBertForSequenceClassification(_distil(size))
        case "tokens":
            model = transformers.BertForTokenClassification(transformers.BertConfig(**size, num_labels=3))
        case "answers":
            model = transformers.BertForQuestionAnswering(transformers.BertConfig(**size))
        case "seq2seq":
            config = transformers.T5Config(
                vocab_size=len(words), d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0
            )
            model = transformers.T5ForConditionalGeneration(config)
    return model, datasets.Dataset.from_list(rows), words


def _distil(size: dict[str, Any]) -> Any:
    import transformers

    return transformers.DistilBertConfig(
        vocab_size=size["vocab_size"],
        dim=8,
        n_layers=1,
        n_heads=2,
        hidden_dim=12,
        max_position_embeddings=24,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
