"""Sequences padded to a fixed length: a row is made from its record alone."""

import pickle

import numpy as np
import pytest
import torch

from tacit.data import pad_to


def test_a_row_does_not_depend_on_the_others():
    short, long = torch.tensor([1, 2]), torch.arange(9)
    collate = pad_to(5)
    assert torch.equal(collate([short, long])[0], collate([short])[0])
    assert collate([short, long]).tolist() == [[1, 2, 0, 0, 0], [0, 1, 2, 3, 4]]


def test_dictionaries_have_a_filling_for_each_field():
    rows = [{"ids": [3, 4], "labels": np.array([1, 1]), "kind": 7, "name": "a"}]
    found = pad_to(3, value={"labels": -100})(rows)
    assert found["ids"].tolist() == [[3, 4, 0]]
    assert found["labels"].tolist() == [[1, 1, -100]]
    assert found["kind"].tolist() == [7]
    assert found["name"] == ["a"]


def test_only_the_named_fields_are_padded():
    frames, image = torch.ones(2, 4), torch.ones(3, 8, 8)
    found = pad_to(6, fields=[0])([(frames, image)])
    assert found[0].shape == (1, 6, 4) and found[1].shape == (1, 3, 8, 8)
    assert found[0][0, 2:].sum() == 0


def test_an_empty_sequence_is_all_padding():
    assert pad_to(2)([([], 1)])[0].tolist() == [[0, 0]]
    assert pad_to(2)([torch.ones(0, 3), torch.ones(1, 3)]).shape == (2, 2, 3)
    assert pad_to(2)([[], [7]]).dtype == torch.int64


def test_a_list_of_fields_is_not_a_sequence():
    tokens, label = pad_to(3)([[torch.tensor([1, 2]), 4]])
    assert tokens.tolist() == [[1, 2, 0]] and label.tolist() == [4]


def test_workers_can_be_given_it():
    assert torch.equal(pickle.loads(pickle.dumps(pad_to(4)))([[1, 2]]), torch.tensor([[1, 2, 0, 0]]))


@pytest.mark.parametrize("length", [0, -1, 2.0, True])
def test_a_length_that_is_none_is_refused(length):
    with pytest.raises(ValueError, match="length is"):
        pad_to(length)
