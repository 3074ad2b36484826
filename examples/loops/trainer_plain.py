"""Fine-tune a small classifier with the Hugging Face Trainer."""

import datasets
import torch
import transformers


def main(directory, epochs=5):
    torch.manual_seed(0)
    label = torch.arange(1200) % 2
    words = torch.randint(2, 50, (1200, 12)) + 50 * label[:, None]
    people = datasets.Dataset.from_dict({"input_ids": words.tolist(), "labels": label.tolist()})
    config = transformers.DistilBertConfig(vocab_size=100, dim=16, n_layers=1, n_heads=2, hidden_dim=32, dropout=0.0)
    model = transformers.DistilBertForSequenceClassification(config)
    args = transformers.TrainingArguments(
        directory,
        num_train_epochs=epochs,
        per_device_train_batch_size=60,
        gradient_accumulation_steps=2,
        learning_rate=0.01,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=model,
        args=args,
        train_dataset=people,
    )
    trainer.train()
    found = trainer.predict(people).predictions.argmax(1)
    return float((torch.as_tensor(found) == label).float().mean())


if __name__ == "__main__":
    print(main("runs/trainer"))
