"""The runs behind Figures 9 to 13 of Shokri & Shmatikov 2015, in the quick and in the full setting: one table each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.collaboration import Protocol, Settings
from tacit.recipes.reproduction.collaborations import SHARES, TITLES, Job
from tacit.recipes.reproduction.experiment import Setting

UPLOADS = (0.001, 0.01, 0.1, 1.0)
ROUND_ROBIN, ASYNCHRONOUS, RANDOM_ORDER = Protocol.ROUND_ROBIN, Protocol.ASYNCHRONOUS, Protocol.RANDOM_ORDER
Which = tuple[str, str]
"""Data set and network."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The result of `tacit collaborate calibrate` on public records for one θ_u (``upload``): γ, τ, and which changes.

    ``selection`` is the better one there of the largest changes and random ones above τ. ``asynchronous`` is the γ of
    asynchronous exchanges if they need a tighter one: the one with which the worst of the last epochs is best.
    ``largest_rate`` is the α of the largest changes, if they need another one.
    """

    upload: float
    bound: float
    threshold: float
    selection: str
    asynchronous: float | None = None
    largest_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Net:
    """A network on a data set, and how it is trained: epochs and α at M = 32.

    ``noisy_epochs`` are those of private uploads, fewer where each needs a part of ε. ``share`` is of the training set,
    held by each participant. γ and τ are those of the calibrated θ_u that is nearest. ``baseline_rates`` are the α of
    which pooled and lonely training have the best. ``repeats``: how many seeds for each that is asked for, where a run
    takes little time; ``baseline_repeats``: the same for pooled and lonely training.
    """

    data: str
    model: str
    epochs: int
    noisy_epochs: int
    learning_rate: float
    share: float
    limits: tuple[Limits, ...]
    baseline_rates: tuple[float, ...]
    repeats: int
    baseline_repeats: int

    @property
    def title(self) -> str:
        return f"{TITLES[self.data]}, {self.model.upper()}"

    def job(self, *, upload: float = 0.1, protocol: Protocol = ROUND_ROBIN, **changes: object) -> Job:
        """The usual collaboration, with ``changes``."""
        limits = min(self.limits, key=lambda known: abs(math.log(known.upload / upload)))
        bound = limits.asynchronous if protocol is ASYNCHRONOUS and limits.asynchronous else limits.bound
        usual = Settings(
            epochs=self.epochs, learning_rate=self.learning_rate, share=self.share, upload=upload, protocol=protocol,
            bound=bound, threshold=limits.threshold, selection="largest" if upload == 1 else limits.selection,
        )  # fmt: skip
        if limits.largest_rate is not None and changes.get("selection", usual.selection) == "largest":
            usual = replace(usual, learning_rate=limits.largest_rate)
        return Job(data=self.data, model=self.model, settings=replace(usual, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The networks, and what is run of each.

    Figure 9: θ_u by protocol and participants (``exchanges``), and θ_d (``downloads``); ``repeats`` are those of 30
    participants by θ_u, where they are not those of the network. Figure 10: θ_u (``selections``). Figure 11: by what α
    is divided, for each number of participants (``rates``). Figure 13, with 30 participants: ε/c by θ_u (``sparse``),
    and the honest ε of other mechanisms (``others``).
    """

    nets: Mapping[Which, Net]
    exchanges: Mapping[Which, Mapping[tuple[Protocol, int], tuple[float, ...]]]
    downloads: Mapping[Which, tuple[float, ...]]
    repeats: Mapping[Which, Mapping[float, int]]
    selections: Mapping[Which, tuple[float, ...]]
    rates: Mapping[Which, Mapping[int, tuple[int, ...]]]
    sparse: Mapping[Which, Mapping[float, tuple[float, ...]]]
    others: Mapping[Which, Mapping[str, tuple[float, ...]]]


LIMITS = {
    ("mnist", "mlp"): (
        Limits(upload=0.001, bound=0.024, threshold=0.019, selection="threshold", asynchronous=0.012, largest_rate=0.2),
        Limits(upload=0.01, bound=0.008, threshold=0.0052, selection="threshold"),
        Limits(upload=0.1, bound=0.0031, threshold=0.00074, selection="largest", asynchronous=0.001),
    ),
    ("svhn", "mlp"): (
        Limits(upload=0.01, bound=0.0021, threshold=0.0016, selection="largest"),
        Limits(upload=0.1, bound=0.001, threshold=0.0007, selection="largest"),
    ),
    ("mnist", "cnn"): (
        Limits(upload=0.01, bound=0.02, threshold=0.011, selection="largest"),
        Limits(upload=0.1, bound=0.012, threshold=0.0028, selection="largest"),
    ),
    ("svhn", "cnn"): (Limits(upload=0.1, bound=0.0075, threshold=0.00074, selection="largest"),),
}
"""From public records: docs/collaboration.md says which."""
RATES = {("mnist", "mlp"): 0.1, ("svhn", "mlp"): 0.02, ("mnist", "cnn"): 0.1, ("svhn", "cnn"): 0.05}
"""α at M = 32."""
BASELINE_RATES = {
    ("mnist", "mlp"): (0.05, 0.1, 0.2, 0.4), ("svhn", "mlp"): (0.002, 0.005, 0.01, 0.02),
    ("mnist", "cnn"): (0.1,), ("svhn", "cnn"): (0.02, 0.05),
}  # fmt: skip


def _net(
    data: str, model: str, *, epochs: int, noisy_epochs: int, repeats: int = 1, baseline_repeats: int | None = None
) -> dict[Which, Net]:
    net = Net(
        data=data, model=model, epochs=epochs, noisy_epochs=noisy_epochs, learning_rate=RATES[data, model],
        share=SHARES[data], limits=LIMITS[data, model], baseline_rates=BASELINE_RATES[data, model], repeats=repeats,
        baseline_repeats=repeats if baseline_repeats is None else baseline_repeats,
    )  # fmt: skip
    return {(data, model): net}


QUICK = Plan(
    nets=_net("mnist", "mlp", epochs=20, noisy_epochs=20, repeats=3)
    | _net("svhn", "mlp", epochs=60, noisy_epochs=20, baseline_repeats=3)
    | _net("mnist", "cnn", epochs=8, noisy_epochs=8),
    exchanges={
        ("mnist", "mlp"): {
            (ROUND_ROBIN, 30): UPLOADS, (ASYNCHRONOUS, 30): UPLOADS, (RANDOM_ORDER, 30): UPLOADS,
            (ROUND_ROBIN, 90): (0.1,), (ASYNCHRONOUS, 90): (0.1,),
        },
        ("svhn", "mlp"): {(ROUND_ROBIN, 30): (0.01, 0.1, 1.0), (ASYNCHRONOUS, 30): (0.1,)},
        ("mnist", "cnn"): {(ROUND_ROBIN, 30): (0.1,)},
    },
    downloads={("mnist", "mlp"): (0.1, 0.5, 1.0)},
    repeats={("mnist", "mlp"): {0.001: 6}, ("svhn", "mlp"): {0.1: 3}},
    selections={("mnist", "mlp"): (0.001, 0.01, 0.1), ("svhn", "mlp"): (0.01, 0.1)},
    rates={("mnist", "mlp"): {30: (1, 10), 90: (1,)}, ("svhn", "mlp"): {30: (1, 10)}},
    sparse={
        ("mnist", "mlp"): {0.1: (1.0, 10.0, 100.0), 0.01: (1.0, 10.0, 100.0)},
        ("svhn", "mlp"): {0.1: (10.0, 100.0)},
    },
    others={
        ("mnist", "mlp"): {"gaussian": (100.0, 1000.0), "dp-sgd": (1.0, 8.0)},
        ("svhn", "mlp"): {"gaussian": (1000.0, 10_000.0), "dp-sgd": (1.0, 8.0)},
    },
)  # fmt: skip
FULL = Plan(
    nets=_net("mnist", "cnn", epochs=40, noisy_epochs=20)
    | _net("mnist", "mlp", epochs=80, noisy_epochs=40)
    | _net("svhn", "cnn", epochs=30, noisy_epochs=20)
    | _net("svhn", "mlp", epochs=80, noisy_epochs=40),
    exchanges={
        ("mnist", "cnn"): {(ROUND_ROBIN, 30): (0.01, 0.1, 1.0), (ASYNCHRONOUS, 30): (0.01, 0.1, 1.0)},
        ("mnist", "mlp"): {
            (protocol, people): UPLOADS for people in (30, 90, 150) for protocol in (ROUND_ROBIN, ASYNCHRONOUS)
        }
        | {(RANDOM_ORDER, 30): (0.1,)},
        ("svhn", "cnn"): {(ROUND_ROBIN, 30): (0.1,), (ASYNCHRONOUS, 30): (0.1,)},
        ("svhn", "mlp"): {
            (protocol, people): (0.01, 0.1, 1.0) for people in (30, 90) for protocol in (ROUND_ROBIN, ASYNCHRONOUS)
        },
    },
    downloads={("mnist", "mlp"): (0.1, 0.5, 1.0)},
    repeats={},
    selections={("mnist", "cnn"): (0.01, 0.1), ("svhn", "cnn"): (0.1,)},
    rates={("mnist", "cnn"): {30: (1, 10), 90: (1,)}, ("svhn", "cnn"): {30: (1, 10)}},
    sparse={
        ("mnist", "cnn"): {0.1: (0.1, 1.0, 10.0, 100.0), 0.01: (0.1, 1.0, 10.0, 100.0)},
        ("svhn", "cnn"): {0.1: (1.0, 10.0, 100.0)},
    },
    others={
        ("mnist", "cnn"): {"gaussian": (100.0, 1000.0, 10_000.0), "dp-sgd": (1.0, 2.0, 8.0)},
        ("svhn", "cnn"): {"gaussian": (1000.0,), "dp-sgd": (8.0,)},
    },
)  # fmt: skip
"""A plan that two cores finish in a night; the paper has 80 epochs, and 30, 90 and 150 participants a network."""


def plan(setting: Setting) -> Plan:
    return QUICK if setting.quick else FULL


def repeated(setting: Setting, times: int) -> Setting:
    """With so many times as many seeds."""
    return replace(setting, seeds=tuple(range(1, len(setting.seeds) * times + 1)))
