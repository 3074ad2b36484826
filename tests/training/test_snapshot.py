"""Sums of bits, by which processes compare what they have."""

from __future__ import annotations

import pytest
import torch

from tacit.training.snapshot import Snapshot, bit_sum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("count", [7, 8])
def test_any_value_that_changes_changes_the_sum(dtype: torch.dtype, count: int) -> None:
    before = torch.arange(count, dtype=dtype)
    for place in range(count):
        after = before.clone()
        after[place] += 1
        assert bit_sum(after) != bit_sum(before)


@pytest.mark.parametrize("offset", range(4))
def test_where_the_values_lie_does_not_matter(offset: int) -> None:
    values = torch.randn(4, 2, 3, 5)
    room = torch.empty(values.numel() + offset)
    shifted = room[offset:].view(values.shape).copy_(values)
    assert bit_sum(shifted) == bit_sum(values) == bit_sum(values.to(memory_format=torch.channels_last))
    held = Snapshot(torch.nn.Parameter(shifted, requires_grad=False), copied=False)
    assert held.same(held.tensor)
    shifted[0, 0, 0, 0] += 1
    assert not held.same(held.tensor)
