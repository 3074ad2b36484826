"""Bounds and values of columns whose owner did not declare them, released with noise and charged to the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tacit.ledger import Ledger, Step
from tacit.randomness import Source
from tacit.tables.binning import lacking_bins
from tacit.tables.column_types import NOTHING, Seen, category_from, column_from, even_cells, remark, restored
from tacit.tables.columns import MOST_VALUES, Category, Column, Number, Undeclared
from tacit.tables.histograms import cell_edges, quantile_knots
from tacit.tables.identifiers import NAMED, names_records
from tacit.tables.kept import Kept
from tacit.tables.looks import Look, Pieces, QuantileLook
from tacit.tables.schema import Schema

_NAME = "discovery"
_SAID = 4
"""So many columns are named where none can be used."""


class NothingFound(ValueError):
    """No column but the target can be used."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A share of all records, with the standard deviation of the noise on it."""

    share: float
    noise_std: float


class Discovery:
    """Looks at the records that release everything that is private in ``schema``.

    Classes of the target come first, in a look of their own: if they cannot be found, the rest is not paid for. Then
    come types, bounds and values of the other columns, and last the quantiles of those that are numbers with more
    values than ``knots``, the most that a column may have. With ``bins``, quantiles of declared numbers that have
    bounds only are released in that last look too.

    Formal guarantee: the record is a row. For each private number it adds one to one bin of a histogram whose edges
    are fixed (powers of two, and kinds of entries that are no numbers), for each private category at most one to the
    count of one value, for an undeclared column both, and nothing where the entry is missing: the L2 sensitivity is 1 a
    query. For the quantiles of a column it adds one to a cell and one to the cell's group, with edges that follow from
    what was released before: sensitivity √2.
    Everyone takes part. A look with m queries, each with noise of s · sqrt(m) times its sensitivity, is one Gaussian
    mechanism of noise multiplier s. There are at most three looks; with s = ``noise_multiplier`` / sqrt(share) for
    shares that add up to one, all of it is no more than one Gaussian mechanism of ``noise_multiplier``. Values are
    released above a threshold, which adds ``slack`` to δ in all. What is made of the noisy counts, the type of an
    undeclared column included, is post-processing.

    Of more records than bounded memory can tell apart, values are counted for some only, each chosen by a coin of its
    own; that can only lower what is charged, and is not made use of.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        noise_multiplier: float,
        slack: float,
        knots: int = 0,
        bins: bool = False,
        texts: bool = False,
        kept: Kept | None = None,
    ) -> None:
        self._schema, self.knots, self._bins, self._texts = schema, knots, bins, texts
        self._kept = kept or Kept()
        self._declared = lacking_bins(schema) if bins else {}
        self._declared_knots: dict[str, tuple[float, ...]] = {}
        self._wanted = {name: schema.columns[name] for name in schema.private}
        self._named = [
            name for name in self._wanted if isinstance(self._wanted[name], Undeclared) and names_records(name)
        ]
        for name in self._named:
            del self._wanted[name]
        self._records = 0
        apart = [{name: column} for name, column in self._wanted.items() if name == schema.target]
        rest = {name: column for name, column in self._wanted.items() if name != schema.target}
        self._numbers = [name for name, column in rest.items() if not isinstance(column, Category) and knots > 2]
        self._numbers += self._declared
        named = sum(not isinstance(column, Number) for column in self._wanted.values())
        shares = {"classes": 0.25 * bool(apart), "types": 0.5 * bool(rest), "quantiles": 0.25 * bool(self._numbers)}
        noise = {
            name: noise_multiplier * math.sqrt(sum(shares.values()) / share) for name, share in shares.items() if share
        }
        looks = [(part, noise["classes"]) for part in apart] + ([(rest, noise["types"])] if rest else [])
        self._looks = [Look(part, loud, slack / max(named, 1)) for part, loud in looks]
        self._classes: Look | None = self._looks[0] if apart else None
        self._quantile_noise = noise.get("quantiles", 0.0)
        self._seen: dict[str, Seen] = restored(self._kept.load(_NAME))

    def steps(self, unit: str) -> list[Step]:
        """Return what the looks that are left will be in the ledger, if every column that can need quantiles does."""
        steps = [look.step(unit) for look in self._looks if not self._has(look)]
        return [*steps, QuantileLook(self._numbers, self._quantile_noise).step(unit)] if self._numbers else steps

    @property
    def least(self) -> Schema:
        """A schema with the fewest features that what is found can be cut down to."""
        target = self._schema.target
        return self._with({name: _least(column, name == target) for name, column in self._wanted.items()})

    @property
    def records_needed(self) -> float:
        """With fewer records, two classes cannot be expected to pass the threshold; 0 if they are declared."""
        return 0.0 if self._classes is None else 2 * self._classes.threshold

    def find_classes(self, pieces: Pieces, *, records: int, ledger: Ledger, source: Source) -> Estimate | None:
        """Release the target's classes if they are private; return the share of records of classes not found."""
        if self._classes is None:
            return None
        if not self._has(self._classes):
            self._look(self._classes, pieces, records, ledger, source)
        return self._missed(self._seen[self._schema.target].values, records)

    @property
    def classes(self) -> tuple[str, ...]:
        """The target's classes that were found."""
        return tuple(self._seen[self._schema.target].values) if self._schema.target in self._seen else ()

    def release(
        self, pieces: Pieces, *, records: int, ledger: Ledger, source: Source, fits: Callable[[Schema], bool]
    ) -> tuple[Schema, Estimate | None]:
        """Release what is left and return the schema, and the share of records whose class it does not have.

        Of values, the commonest are kept: as many as make a schema that fits.
        """
        self._records = records
        for look in self._looks:
            if not self._has(look):
                self._look(look, pieces, records, ledger, source)
        self._find_quantiles(pieces, ledger, source)
        most = MOST_VALUES
        while most > 1 and not fits(self._found(most)):
            most //= 2
        schema = self._found(most)
        if self._classes is None:
            return schema, None
        counts = self._seen[schema.target].values
        return schema, self._missed({name: counts[name] for name in schema.classes if name in counts}, records)

    def _has(self, look: Look) -> bool:
        return look.wanted.keys() <= self._seen.keys()

    def _look(self, look: Look, pieces: Pieces, records: int, ledger: Ledger, source: Source) -> None:
        self._seen |= look.release(pieces, records=records, ledger=ledger, source=source)
        self._kept.save(_NAME, {name: seen.facts() for name, seen in self._seen.items()})

    def _find_quantiles(self, pieces: Pieces, ledger: Ledger, source: Source) -> None:
        """Release finer counts for the columns that are numbers, and whose values are not known one by one."""
        found = self._found(MOST_VALUES).columns
        wanted = [name for name in self._numbers if isinstance(column := found.get(name), Number) and not column.knots]
        if not wanted:
            return
        look = QuantileLook(wanted, self._quantile_noise)
        edges = {
            name: cell_edges(bins, seen.std) for name, seen in self._seen.items() if (bins := seen.bins) is not None
        }
        edges |= {name: even_cells(one) for name, one in self._declared.items()}
        numbers = {name: one for name in wanted if isinstance(one := self._schema.columns[name], Number)}
        for name, counts in look.release(pieces, edges, numbers, ledger=ledger, source=source).items():
            if name in self._declared:
                points = quantile_knots(counts, edges[name], std=look.std, most=self.knots, rough=True)
                self._declared_knots[name] = points
            else:
                self._seen[name] = replace(self._seen[name], tree=counts, tree_std=look.std)

    def remarks(self, records: int) -> dict[str, str]:
        """Return why columns are not used, or not whole; from released counts."""
        found = self._found(MOST_VALUES).columns
        said = {
            name: remark(name, seen, found.get(name), records, len(self._seen)) for name, seen in self._seen.items()
        }
        said |= dict.fromkeys(self._named, NAMED)
        return {name: text for name, text in said.items() if text}

    def _missed(self, counts: Mapping[str, float], records: int) -> Estimate:
        """Return the share of records of other classes, from released counts: post-processing."""
        assert self._classes is not None
        noise = self._classes.std / self._seen[self._schema.target].share * math.sqrt(len(counts)) / records
        return Estimate(share=min(max(1 - sum(counts.values()) / records, 0.0), 1.0), noise_std=noise)

    def _found(self, most: int) -> Schema:
        target = self._schema.target
        found: dict[str, Column | None] = {
            name: column_from(
                self._wanted[name],
                seen,
                max(most, 2 if name == target else 1),
                self.knots,
                self._bins,
                texts=self._texts,
                records=self._records,
            )
            for name, seen in self._seen.items()
        }
        found |= {name: replace(self._declared[name], knots=points) for name, points in self._declared_knots.items()}
        return self._with(found)

    def _with(self, found: Mapping[str, Column | None]) -> Schema:
        found = {**found, **dict.fromkeys(self._named)}
        columns = {name: found.get(name, column) for name, column in self._schema.columns.items()}
        known = {name: column for name, column in columns.items() if column is not None}
        if len(known) < 2:
            said = [
                f"{name!r}: {remark(name, seen, None, self._records, len(self._seen))}."
                for name, seen in self._seen.items()
                if name != self._schema.target
            ]
            said += [f"{name!r}: {NAMED}." for name in self._named]
            more = f" And {len(said) - _SAID} more." if len(said) > _SAID else ""
            raise NothingFound(f"no column but the target can be used. {' '.join(said[:_SAID])}{more}".strip())
        return replace(self._schema, columns=known)


def _least(column: Column, target: bool) -> Column:
    if isinstance(column, Number):
        return replace(column, low=-1.0, high=1.0)
    return category_from(column, {NOTHING: 1.0} | ({"(nor a second)": 1.0} if target else {}), 2)
