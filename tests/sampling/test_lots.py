"""Lots read in batches: every record once, in order, and empty lots of the right shapes."""

from __future__ import annotations

from collections import UserDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from tacit.sampling import LotReader, batches

X = torch.arange(40, dtype=torch.float32).view(20, 2)
Y = torch.arange(20)
LOT = np.array([3, 4, 7, 11, 19])
NOBODY = np.empty(0, dtype=np.int64)


class MapStyle(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return X[index], int(Y[index])


class HuggingFaceLike:
    """Rows as dictionaries; many at once through ``__getitems__``, as ``datasets.Dataset`` has it."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": X[index], "label": int(Y[index]), "text": f"row {index}"}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
@pytest.mark.parametrize("dataset", [TensorDataset(X, Y), MapStyle()])
def test_batches_of_any_size_are_the_same_records(dataset: Any, batch_size: int) -> None:
    parts = list(LotReader(dataset, batch_size=batch_size).read(LOT))
    assert all(len(y) <= batch_size for _, y in parts)
    assert torch.equal(torch.cat([x for x, _ in parts]), X[LOT])
    assert torch.equal(torch.cat([y for _, y in parts]), Y[LOT])


@pytest.mark.parametrize("dataset", [TensorDataset(X, Y), MapStyle()])
def test_an_empty_lot_is_one_empty_batch_of_the_right_shape(dataset: Any) -> None:
    ((x, y),) = LotReader(dataset, batch_size=4).read(NOBODY)
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((0, 2), torch.float32, (0,), torch.int64)


def test_a_bare_tensor_is_a_data_set() -> None:
    assert torch.equal(next(LotReader(X, batch_size=9).read(LOT)), X[LOT])
    assert next(LotReader(X, batch_size=9).read(NOBODY)).shape == (0, 2)


def test_hugging_face_rows() -> None:
    reader = LotReader(HuggingFaceLike(), batch_size=3)
    first, second = reader.read(LOT)
    assert first["text"] == ["row 3", "row 4", "row 7"]
    assert torch.equal(second["label"], Y[[11, 19]])
    (nobody,) = reader.read(NOBODY)
    assert nobody["x"].shape == (0, 2)
    assert nobody["label"].dtype == torch.int64
    assert nobody["text"] == []


def test_workers_read_the_same_lots_one_after_another() -> None:
    reader = LotReader(MapStyle(), batch_size=2, num_workers=2)
    for lot in (LOT, NOBODY, LOT[:1]):
        parts = list(reader.read(lot))
        assert torch.equal(torch.cat([x for x, _ in parts]), X[lot])
        assert parts[0][0].shape[1:] == (2,)


def test_own_collate_and_containers() -> None:
    pair = namedtuple("pair", ["x", "y"])
    for wrap in (
        lambda x, y: pair(x, y),
        lambda x, y: UserDict(x=x, y=y),
        lambda x, y: defaultdict(list, x=x, y=y),
        lambda x, y: [x, (y.numpy(), {"y": y})],
    ):
        reader = LotReader(
            MapStyle(),
            batch_size=9,
            collate_fn=lambda rows, wrap=wrap: wrap(*map(torch.stack, zip(*[(x, torch.tensor(y)) for x, y in rows]))),
        )
        (full,), (nobody,) = reader.read(LOT), reader.read(NOBODY)
        assert type(full) is type(nobody)
        x = nobody[0] if isinstance(nobody, list | tuple) else nobody["x"]
        assert x.shape == (0, 2)
    assert nobody[1][0].shape == (0,)
    with pytest.raises(ValueError, match="collate_fn returned a object"):
        next(LotReader(MapStyle(), batch_size=9, collate_fn=lambda rows: object()).read(NOBODY))


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        LotReader(X, batch_size=0)
    with pytest.raises(ValueError, match="batch_size is 0"):
        list(batches(LOT, 0))
    with pytest.raises(ValueError, match="data set is empty"):
        next(LotReader([], batch_size=3).read(NOBODY))
