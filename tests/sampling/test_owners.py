"""Several owners of one record: nobody owns more than so many of those chosen, and a group of that size covers one."""

import numpy as np
import pytest

from tacit.sampling import bounded_by_owner


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_owner_has_more_than_so_many_and_no_record_could_be_added(most: int) -> None:
    rng = np.random.default_rng(most)
    owners = [set(rng.integers(0, 40, size=rng.integers(1, 4)).tolist()) for _ in range(300)]
    chosen = bounded_by_owner(owners, most=most)
    counts = np.bincount([person for number in chosen for person in owners[number]], minlength=40)
    assert counts.max() == most
    left = set(range(300)) - set(chosen.tolist())
    assert all(any(counts[person] >= most for person in owners[number]) for number in left)


def test_the_choice_does_not_depend_on_what_is_in_the_records() -> None:
    owners = [(0, 1), (0, 2), (1,), (0,), (2, 3)]
    assert bounded_by_owner(owners, most=2).tolist() == bounded_by_owner([list(o) for o in owners], most=2).tolist()


@pytest.mark.parametrize(
    ("owners", "most", "message"), [([(0,)], 0, "most is 0"), ([(0,), ()], 1, "record 1 has no owner")]
)
def test_bad_input_is_one_sentence(owners: list[tuple[int, ...]], most: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bounded_by_owner(owners, most=most)
