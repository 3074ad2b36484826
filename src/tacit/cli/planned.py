"""Turn plans into ledger entries, and compare the proved ε of shuffled lots with the ε that is often claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.ledger.events import Allocated, Shuffled, Step


def planned_entries(
    sampling: str,
    rate: float,
    noise_multiplier: float,
    steps: int,
    noise: str,
    adjacency: str,
    records_per_owner: int | None = None,
) -> list[tuple[Step, int]]:
    """The steps of a plan. An epoch has 1/rate steps, rounded: the rate of lots that are dealt out is one over that.

    Shuffled lots are of equal size under replace-one, as a data loader cuts them; under add/remove, where those have no
    proof, each record's own coin chooses its lot.
    """
    from tacit.accounting.draft import gradients
    from tacit.ledger.events import Allocated, OwnedPoisson, Poisson, Shuffled, Step

    query = gradients(noise_multiplier, noise)
    if records_per_owner is not None:
        return [(Step(OwnedPoisson(rate=rate, records=records_per_owner, most=records_per_owner), (query,)), steps)]
    if sampling == "poisson":
        return [(Step(Poisson(rate=rate), (query,)), steps)]
    if sampling not in ("allocation", "shuffled"):
        raise ValueError(f"--sampling is {sampling!r}; choose poisson, allocation or shuffled.")
    lots = _lots(rate)
    whole, rest = divmod(steps, lots)
    if whole > 100_000:
        raise ValueError(f"--steps is {steps}, {whole} epochs of {lots} lots; account for at most 100000 epochs.")
    first: Allocated | Shuffled = Allocated(lots=lots, epoch=0, records=lots)
    if sampling == "shuffled":
        assignment = "equal" if adjacency == "replace-one" else "independent"
        first = Shuffled(lots=lots, epoch=0, records=lots, assignment=assignment)  # type: ignore[arg-type]
    counts = [lots] * whole + [rest] * (rest > 0)
    return [(Step(replace(first, epoch=epoch), (query,)), count) for epoch, count in enumerate(counts)]


def _lots(rate: float) -> int:
    """Return the number of lots in an epoch."""
    if not 0 < rate <= 1:
        raise ValueError(f"--sampling-rate is {rate!r}; it must be in (0, 1].")
    lots = round(1 / rate)
    if lots > 10**9:
        raise ValueError(f"--sampling-rate is {rate!r}; an epoch may have at most 10^9 lots.")
    return lots


def compared(
    rate: float, noise_multiplier: float, steps: int, delta: float, *, accountant: str
) -> tuple[dict[str, object], list[str]]:
    """Return facts and lines on the proved ε of shuffled lots and random allocation, and on Poisson's ε.

    The warning needs no shuffling theorem. If all other records contribute nothing, shuffled lots of equal size and
    random allocation give the record the same uniform lot and the same answers. Those neighbours attain random
    allocation's lower bound, so shuffled lots cost at least as much: an ε of Poisson sampling below it is wrong.
    """
    from tacit.accounting import guarantee
    from tacit.accounting.guarantee import rounded_up
    from tacit.ledger import Header

    def found(sampling: str, adjacency: str = "add/remove") -> tuple[float, float | None]:
        entries = planned_entries(sampling, rate, noise_multiplier, steps, "gaussian", adjacency)
        header = Header(adjacency=adjacency)  # type: ignore[arg-type]
        made = guarantee(entries, header, delta=delta, accountant=accountant)
        return made.epsilon, made.epsilon_lower

    shuffled, _ = found("shuffled")
    replaced, _ = found("shuffled", "replace-one")
    allocated, least = found("allocation")
    poisson, _ = found("poisson")
    wrong = least is not None and poisson < least
    lines = [
        f"shuffled lots, proved:             ε = {rounded_up(shuffled)} add/remove (each record's own coin), "
        f"{rounded_up(replaced)} replace-one (lots of equal size); no amplification",
        f"random allocation, proved:         ε = {rounded_up(allocated)} add/remove (sampling='allocation')",
        f"Poisson's ε, not shuffling's:      ε = {rounded_up(poisson)}; proved for Poisson lots only",
    ]
    if least is not None:
        lines.append(
            f"no shuffling costs less than:      ε = {least:.4g}, which one record attains whose fellows add nothing"
        )
    lines.append(
        f"warning: to claim Poisson's ε for shuffled lots is WRONG here: {poisson:.4g} is below {least:.4g}, which "
        "neighbours attain."
        if wrong
        else "warning: to claim Poisson's ε for shuffled lots has no proof, even where this bound does not refute it."
    )
    facts: dict[str, object] = {
        "epsilon": shuffled,
        "epsilon_replace_one": replaced,
        "epsilon_allocation": allocated,
        "epsilon_lower": least,
        "epsilon_poisson_claim": poisson,
        "poisson_claim_refuted": wrong,
        "delta": delta,
        "accountant": accountant,
        "sampling": "shuffled",
        "adjacency": "add/remove",
    }
    return facts, lines
