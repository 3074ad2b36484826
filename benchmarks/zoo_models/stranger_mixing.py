"""Networks and losses of papers in which examples of a batch influence each other: none may be accepted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, Loss, entry
from zoo_models.plain import classify, mlp, pictures, rows, series, texts


def mixing(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    return entry("stranger", f"mixing-{name}", honest=False)


class Correlated(nn.Module):
    """Autoformer: delays are chosen by the correlation that is the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.head = (nn.Linear(1, 4) for _ in range(4))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x).transpose(1, 2), self.k(x).transpose(1, 2), self.v(x).transpose(1, 2)
        found = torch.fft.irfft(torch.fft.rfft(q) * torch.conj(torch.fft.rfft(k)))
        mean = found.mean(dim=1)
        index = torch.topk(mean.mean(dim=0), 2, dim=-1)[1]
        weights = torch.softmax(torch.stack([mean[:, index[i]] for i in range(2)], dim=-1), dim=-1)
        out = sum(torch.roll(v, -int(index[i]), -1) * weights[:, i].view(-1, 1, 1) for i in range(2))
        return self.head(out.transpose(1, 2))


class Periods(nn.Module):
    """TimesNet: the periods of the batch's mean spectrum fold every series."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        strength = torch.fft.rfft(x, dim=1).abs().mean(0).mean(-1)
        strength[0] = 0
        period = x.shape[1] // int(torch.topk(strength, 1)[1].detach().cpu().numpy()[0])
        length = -(-x.shape[1] // period) * period
        padded = F.pad(x, (0, 0, 0, length - x.shape[1])).permute(0, 2, 1)
        out = self.conv(padded.reshape(len(x), 1, length // period, period))
        return self.head(out.reshape(len(x), 1, -1).permute(0, 2, 1)[:, : x.shape[1]])


class Between(nn.Module):
    """SAINT: rows of a table attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.layer = nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.into(x).unsqueeze(0)).squeeze(0))


class Capacity(nn.Module):
    """Experts that take so many tokens of the batch and drop the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts, self.head = nn.Linear(8, 2), nn.ModuleList([mlp(8, 8) for _ in "ab"]), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        p = self.gate(x).softmax(-1)
        chosen = F.one_hot(p.argmax(-1), 2)
        kept = (torch.cumsum(chosen, dim=0) * chosen <= 2) * chosen
        out = sum(e(x) * (p[:, i] * kept[:, i]).unsqueeze(-1) for i, e in enumerate(self.experts))
        return self.head(x + out)


class Style(nn.Module):
    """MixStyle: statistics of feature maps are exchanged between pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        mean, std = x.mean((2, 3), keepdim=True).detach(), (x.var((2, 3), keepdim=True) + 1e-6).sqrt().detach()
        order = torch.arange(len(x) - 1, -1, -1)
        x = (x - mean) / std * (0.6 * std + 0.4 * std[order]) + (0.6 * mean + 0.4 * mean[order])
        return self.head(x.relu().mean((2, 3)))


class Rotated(nn.Module):
    """Predictions of neighbours in memory: every picture sees the one before."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.roll(x, 1, dims=0)


class Centred(nn.Module):
    """DINO: the teacher's centre is a running mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.teacher = mlp(8, 6), mlp(8, 6).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            seen = self.teacher(x)
            wanted = ((seen - self.centre) / 0.1).softmax(-1)
            self.centre.mul_(0.9).add_(seen.mean(0), alpha=0.1)
        return -(wanted * self.net(x).log_softmax(-1)).sum(-1).mean()


class Observed(nn.Module):
    """Quantisation-aware training whose range is that of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        scale = float(h.detach().max()) / 255
        return self.last(torch.fake_quantize_per_tensor_affine(h, scale, 0, 0, 255))


mixing("auto-correlation")(lambda: Case(Correlated(), series, lambda m, b: F.mse_loss(m(b[0]), b[1])))
mixing("periods-of-the-batch")(lambda: Case(Periods(), series, lambda m, b: F.mse_loss(m(b[0]), b[1])))
mixing("rows-attend")(lambda: Case(Between(), rows, classify))
mixing("expert-capacity")(lambda: Case(Capacity(), rows, classify))
mixing("exchanged-style")(lambda: Case(Style(), pictures, classify))
mixing("neighbour-in-the-batch")(
    lambda: Case(nn.Sequential(nn.Linear(8, 8), Rotated(), nn.Linear(8, 3)), rows, classify)
)
mixing("running-centre")(lambda: Case(Centred(), rows, lambda m, b: m(b[0])))
mixing("observed-range")(lambda: Case(Observed(), rows, classify))


def with_loss(name: str, loss: Loss, outputs: int = 3) -> None:
    mixing(name)(lambda: Case(mlp(8, outputs), rows, loss))


def cut_mix(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch[0].clone(), batch[1]
    x[:, :3] = x.flip(0)[:, :3]
    out = model(x)
    return 0.6 * F.cross_entropy(out, y) + 0.4 * F.cross_entropy(out, y.flip(0))


def positives(model: nn.Module, batch: Batch) -> Tensor:
    """RetinaNet's focal loss over the positives of the batch."""
    out, hot = model(batch[0]), F.one_hot(batch[1], 3).float()
    each = F.binary_cross_entropy_with_logits(out, hot, reduction="none")
    return each.sum() / (batch[1] > 0).sum().clamp(min=1)


def total_correlation(model: nn.Module, batch: Batch) -> Tensor:
    mean, log = model(batch[0]).chunk(2, -1)
    z = mean + torch.exp(0.5 * log) * 0.1
    pairs = -0.5 * (log[None] + (z[:, None] - mean[None]) ** 2 / log[None].exp())
    return (pairs.sum(-1).logsumexp(1) - pairs.logsumexp(1).sum(-1)).mean()


def margin_by_batch(model: nn.Module, batch: Batch) -> Tensor:
    each = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (each / each.detach().mean()).mean()


def trimmed(model: nn.Module, batch: Batch) -> Tensor:
    each = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return each[each <= each.detach().quantile(0.7)].mean()


def survivors(model: nn.Module, batch: Batch) -> Tensor:
    """DeepHit's ranking of pairs."""
    p = model(batch[0]).softmax(-1).cumsum(-1)
    earlier = (batch[1][:, None] < batch[1][None]).float()
    risk = p.gather(1, batch[1][:, None])
    return (earlier * torch.exp(-(risk - p[:, batch[1]].T))).mean() + F.cross_entropy(model(batch[0]), batch[1])


def advantages(model: nn.Module, batch: Batch) -> Tensor:
    """PPO with advantages that are standardised over the batch."""
    out = model(batch[0])
    gain = batch[0][:, 0] - out[:, 0].detach()
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    ratio = torch.exp(out.log_softmax(-1).gather(1, batch[1][:, None]).squeeze(1) + 1.0)
    return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


def kahneman(model: nn.Module, batch: Batch) -> Tensor:
    """KTO: the reference point is an estimate over the batch."""
    score = model(batch[0])[:, 0]
    point = score.mean().clamp(min=0).detach()
    sign = torch.where(batch[1] > 0, 1.0, -1.0)
    return (1 - torch.sigmoid(sign * (score - point))).mean()


def neighbours(model: nn.Module, batch: Batch) -> Tensor:
    """Stochastic neighbour embedding."""
    y = model(batch[0])
    near = torch.cdist(batch[0], batch[0]).neg().fill_diagonal_(-1e9).softmax(1)
    return -(near * torch.cdist(y, y).neg().fill_diagonal_(-1e9).log_softmax(1)).sum(1).mean()


def mean_output(model: nn.Module, batch: Batch) -> Tensor:
    """The entropy of the batch's mean answer is raised, so that all classes are used."""
    p = model(batch[0]).softmax(-1)
    mean = p.mean(0)
    return F.cross_entropy(model(batch[0]), batch[1]) + (mean * mean.log()).sum()


for name, loss in {
    "cut-mix": cut_mix, "focal-over-positives": positives, "divided-by-the-mean-loss": margin_by_batch,
    "trimmed-loss": trimmed, "survival-ranking": survivors, "standardised-advantages": advantages,
    "kahneman": kahneman, "neighbour-embedding": neighbours, "entropy-of-the-mean": mean_output,
}.items():  # fmt: skip
    with_loss(name, loss)
with_loss("total-correlation", total_correlation, 4)


class Fisher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(30, 6), nn.Linear(6, 3)

    def forward(self, words: Tensor, length: Tensor) -> Tensor:
        x = self.words(words)
        seen = (words > 0).float()
        rare = 1.0 / (1.0 + torch.stack([(words == w).any(1).sum() for w in range(30)])[words].float())
        return self.head((x * (seen * rare).unsqueeze(-1)).sum(1))


mixing("words-weighted-by-the-batch")(lambda: Case(Fisher(), texts, classify))
