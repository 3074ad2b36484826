"""Masked sums: exact whoever falls silent, hidden below the threshold, and only among people somebody vouches for."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from collaboration.network.masked import BOUND, ROUND, added, dealt, entered, masks, refused
from tacit.collaboration import Reason, Refused
from tacit.collaboration.network import Credentials, make_keys
from tacit.collaboration.network.masking import Mask, Words, decode, encode, own_mask, pair_mask, places, vouched_text
from tacit.collaboration.network.roster import Card, pack_roster, threshold_of, unpack_roster
from tacit.collaboration.network.shamir import SHARE_BYTES
from tacit.collaboration.network.sharing import KEY, SEED, Deal
from tacit.collaboration.network.unmasking import check_revealed, unmask

NAMES = ("ann", "bob", "carl", "dora", "eve")


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("five")
    make_keys(folder, servers=["127.0.0.1"], participants=list(NAMES))
    return folder


def some_values(people: int, count: int = 64) -> list[Words]:
    rng = np.random.default_rng(7)
    return [encode(rng.uniform(-BOUND, BOUND, size=count).astype(np.float32), BOUND) for _ in range(people)]


def looks_uniform(words: Words) -> bool:
    high = np.bincount((words >> np.uint64(56)).astype(np.int64), minlength=256)
    low = np.bincount((words & np.uint64(255)).astype(np.int64), minlength=256)
    return min(stats.chisquare(high).pvalue, stats.chisquare(low).pvalue) > 1e-9


def opened(
    people: dict[int, Mask], deals: dict[int, Deal], survivors: tuple[int, ...], revealers: tuple[int, ...],
    sent: dict[int, Words],
) -> Words:  # fmt: skip
    """The server's part: signatures of the revealers, their shares, the sum."""
    roster = people[0].roster
    vouchers = {place: people[place].vouch(survivors) for place in revealers}
    revealed = {
        place: check_revealed(roster, deals, survivors, place, people[place].reveal(vouchers)) for place in revealers
    }
    return unmask(added(sent[place] for place in survivors), roster, deals, survivors, revealed)


@pytest.mark.parametrize("silent_dealers", [0, 1])
def test_every_subset_of_dropouts_down_to_the_threshold_gives_the_exact_sum(five: Path, silent_dealers: int) -> None:
    """Who vanishes before dealing, sending or revealing does not matter: the sum is exact, bit by bit."""
    values = some_values(5)
    for dealers in itertools.combinations(range(5), 5 - silent_dealers):
        for gone in itertools.chain.from_iterable(itertools.combinations(dealers, k) for k in range(len(dealers) - 2)):
            people, roster = entered(five, NAMES)
            assert roster.threshold == 3
            deals = dealt(people, dealers)
            sent = {place: people[place].hide(values[place]) for place in dealers}  # those of the gone arrive late
            survivors = tuple(place for place in dealers if place not in gone)
            total = opened(people, deals, survivors, survivors[-3:], sent)
            assert np.array_equal(total, added(values[place] for place in survivors))


def test_below_the_threshold_nothing_is_signed_or_revealed(five: Path) -> None:
    people, _ = entered(five, NAMES)
    dealt(people, range(5))
    for mask in people.values():
        mask.hide(some_values(1)[0])
    with pytest.raises(ValueError, match="2 uploads arrived; 3 must have"):
        people[0].vouch((0, 1))
    with pytest.raises(ValueError, match="nothing is revealed before"):
        people[0].reveal({})
    vouchers = {place: people[place].vouch((0, 1, 2)) for place in (0, 1)}
    with pytest.raises(ValueError, match="2 of the round have signed the same survivors, and 3 must have"):
        people[0].reveal(vouchers)


def test_two_shares_of_five_say_nothing_about_a_mask(five: Path) -> None:
    """With two shares of three, each seed is as likely as any other: unmasking with made-up ones gives noise."""
    people, roster = entered(five, NAMES)
    deals = dealt(people, range(5))
    values = some_values(5, 4000)
    sent = {place: people[place].hide(values[place]) for place in range(5)}
    everybody = tuple(range(5))
    vouchers = {place: people[place].vouch(everybody) for place in everybody}
    shares = {place: people[place].reveal(vouchers) for place in (0, 1)}
    shares[2] = bytes(len(shares[0]))
    assert refused(Reason.UNKNOWN, lambda: check_revealed(roster, deals, everybody, 2, shares[2]))
    left = added(sent.values()) - added(values)
    for place in everybody:  # the own masks are what is left, and none of them is known
        left = left - own_mask(people[place]._seed, roster, place, everybody, 4000)
    assert not left.any() and looks_uniform(added(sent.values()) - added(values))


def test_shares_of_both_kinds_of_one_participant_are_never_both_revealed(five: Path) -> None:
    """A server that tells some that eve is there and others that she is gone: nobody answers twice, nobody gets t."""
    people, roster = entered(five, NAMES)
    dealt(people, range(5))
    with_eve, without = (0, 1, 2, 3, 4), (0, 1, 2, 3)
    signed_with = {place: people[place].vouch(with_eve) for place in (0, 1)}
    signed_without = {place: people[place].vouch(without) for place in (2, 3)}
    for place in (0, 1):
        with pytest.raises(ValueError, match="other survivors than before"):
            people[place].vouch(without)
    for vouchers in (signed_with, signed_without, signed_with | signed_without):
        for place in range(4):
            with pytest.raises(ValueError, match="of the round have signed the same survivors"):
                people[place].reveal(vouchers)
    third = people[4].vouch(with_eve)  # she herself is honest too: one of the two sets can have three, not both
    shares = people[0].reveal(signed_with | {4: third})
    eve = shares[4 * SHARE_BYTES :]
    assert eve == people[0]._shares[4][SEED] != people[0]._shares[4][KEY]
    with pytest.raises(ValueError, match="of the round have signed the same survivors"):
        people[2].reveal(signed_without | {4: third})
    assert 2 * roster.threshold > 5


def test_a_late_upload_of_a_participant_declared_gone_stays_masked(five: Path) -> None:
    """The server knows its key for masks by then, and every mask with the others; its own mask is left."""
    people, roster = entered(five, NAMES)
    deals = dealt(people, range(5))
    values = some_values(5, 4000)
    sent = {place: people[place].hide(values[place]) for place in range(5)}
    survivors = (0, 1, 2, 3)
    total = opened(people, deals, survivors, (0, 1, 2), sent)
    assert np.array_equal(total, added(values[:4]))
    late = sent[4]
    for other in survivors:
        late = late - pair_mask(people[4]._key, roster, 4, other, range(5), 4000)
    assert looks_uniform(late - values[4])
    assert np.array_equal(late - values[4], own_mask(people[4]._seed, roster, 4, range(5), 4000))


def test_the_server_and_all_others_see_uniform_numbers_of_a_lone_honest_pair(five: Path) -> None:
    """carl, dora and eve tell the server all they know; ann's and bob's uploads are masked, their sum is not."""
    people, roster = entered(five, NAMES)
    deals = dealt(people, range(5))
    values = some_values(5, 4000)
    sent = {place: people[place].hide(values[place]) for place in range(5)}
    everybody = tuple(range(5))
    total = opened(people, deals, everybody, (0, 1, 2), sent)
    assert np.array_equal(total, added(values))
    seen = {}
    for honest in (0, 1):
        known = own_mask(people[honest]._seed, roster, honest, everybody, 4000)  # opened by the shares
        for other in (2, 3, 4):
            known = known - pair_mask(people[other]._key, roster, other, honest, everybody, 4000)
        seen[honest] = sent[honest] - known - values[honest]
        assert looks_uniform(seen[honest])
    assert not (seen[0] + seen[1]).any()  # what is left is the one mask between them


def test_replayed_and_forged_shares_are_refused(five: Path) -> None:
    people, roster = entered(five, NAMES)
    deals = dealt(people, range(5))
    entries = {dealer: deal.entries[0] for dealer, deal in deals.items()}
    other, _ = entered(five, NAMES)
    replayed = Deal.unpack(other[1].deal(), people=5).entries[0]
    flipped = entries[1][:-1] + bytes([entries[1][-1] ^ 1])
    for wrong, sentence in (
        (replayed, "not sealed by it for us"),  # of another round
        (deals[1].entries[2], "not sealed by it for us"),  # for somebody else
        (deals[2].entries[0], "not sealed by it for us"),  # by somebody else
        (deals[0].entries[1], "not sealed by it for us"),  # our own to it, sent back: the same secret, the other way
        (flipped, "not sealed by it for us"),
        (bytes(32) + entries[1][32:], "not those whose digests it shows"),
        (entries[1][1:], "have 145 bytes"),
    ):
        with pytest.raises(Refused, match=sentence):
            people[0].receive(entries | {1: wrong})
    survivors = (0, 1, 2, 3)
    vouchers = {place: people[place].vouch(survivors) for place in survivors}
    good = people[0].reveal(vouchers)
    assert set(check_revealed(roster, deals, survivors, 0, good)) == set(range(5))
    for forged in (bytes(len(good)), good[SHARE_BYTES:] + good[:SHARE_BYTES], people[1].reveal(vouchers)):
        assert "not the one that it has dealt" in refused(
            Reason.UNKNOWN, lambda forged=forged: check_revealed(roster, deals, survivors, 0, forged)
        )
    assert "shares have" in refused(Reason.MALFORMED, lambda: check_revealed(roster, deals, survivors, 0, good[1:]))
    swapped = b"".join(people[0]._shares[dealer][KEY] for dealer in range(5))  # keys in the place of seeds
    refused(Reason.UNKNOWN, lambda: check_revealed(roster, deals, survivors, 0, swapped))


def test_signatures_of_others_and_of_other_survivors_do_not_count(five: Path) -> None:
    people, _ = entered(five, NAMES)
    dealt(people, range(5))
    survivors = (0, 1, 2)
    good = {place: people[place].vouch(survivors) for place in survivors}
    outside = {place: people[place].vouch((0, 1, 2, 3, 4)) for place in (3, 4)}
    for vouchers in (
        {0: good[0], 1: good[1], 2: good[1]},
        {0: good[0], 1: good[1], 3: outside[3], 4: outside[4]},
        {0: good[0], 1: good[1], 2: b""},
        {0: good[0], 1: good[1], 3: people[3]._signed(vouched_text(people[0].roster, range(5), survivors))},
    ):
        with pytest.raises(ValueError, match="2 of the round have signed"):
            people[0].reveal(vouchers)
    assert len(people[0].reveal(good)) == 5 * SHARE_BYTES


def test_a_dealer_of_shares_that_do_not_fit_is_named(five: Path) -> None:
    """carl deals shares of another key: nobody can know before he falls silent; then the round is abandoned."""
    people, _ = entered(five, NAMES)
    people[2]._key, honest = masks(five, ("carl",))[0]._key, people[2]._key
    people[2].deal()
    people[2]._key = honest
    deals = dealt(people, range(5))
    sent = {place: people[place].hide(some_values(1)[0]) for place in range(5)}
    with pytest.raises(Refused, match="the shares that 'carl' dealt do not fit together; revoke it"):
        opened(people, deals, (0, 1, 3, 4), (0, 1, 3), sent)


def test_single_uploads_look_random_and_are_refused_as_sums(five: Path) -> None:
    people, _ = entered(five, NAMES[:3])
    dealt(people, range(3))
    values = some_values(3, 4000)
    hidden = [people[place].hide(values[place]) for place in range(3)]
    for seen in (*hidden, hidden[0] + hidden[1], hidden[0] - values[0]):
        assert looks_uniform(seen)
        with pytest.raises(Refused, match="beyond what its participants could have sent"):
            decode(seen, BOUND, terms=3)


def test_the_threshold_is_more_than_half_and_at_least_what_was_agreed() -> None:
    for people in range(2, 40):
        for least in range(2, people + 1):
            found = threshold_of(people, least)
            assert 2 * found > people and least <= found <= people


def test_keys_that_no_participant_signed_are_refused(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path, participants=["bob"])
    ann, bob = masks(keys, ("ann", "bob"))
    false = Mask(Credentials.read(tmp_path, "bob"), collaboration="c", round_id=ROUND)
    older = Mask(Credentials.read(keys, "bob"), collaboration="c", round_id=bytes(16))
    server = Mask(Credentials.read(keys, "server"), collaboration="c", round_id=ROUND)
    good = [ann.card(), bob.card()]
    swapped = replace(bob.card(), public=ann.card().public)
    sealing = replace(bob.card(), sealing=older.card().sealing)
    broken = replace(bob.card(), certificate=b"nonsense")
    for card in (false.card(), older.card(), server.card(), swapped, sealing, broken):
        with pytest.raises(Refused, match=r"vouches|not a participant's"):
            ann.enter([ann.card(), card], least=2)
    for cards, least in (
        ([ann.card()], 1),
        (good, 3),
        ([bob.card(), masks(keys, ("carl",))[0].card()], 2),
        ([*good, bob.card()], 2),
    ):
        with pytest.raises(ValueError, match="nothing was sent"):
            ann.enter(cards, least=least)
    assert ann.enter(good, least=2).names == ("ann", "bob")
    carl = masks(keys, ("carl",))[0].card()
    with pytest.raises(ValueError, match="others in the round than before"):
        ann.enter([*good, carl], least=2)
    for data in (b"", b"\1\0", pack_roster(good)[:-1], pack_roster(good) + b"x"):
        with pytest.raises(Refused):
            unpack_roster(data)
    with pytest.raises(Refused):
        Card.unpack(bytes(10))


def test_the_places_of_a_round_are_the_same_for_all_and_others_next_time() -> None:
    found = places(ROUND, size=1000, count=100)
    assert np.array_equal(found, places(ROUND, size=1000, count=100))
    assert found.size == np.unique(found).size == 100 and found.max() < 1000
    assert not np.array_equal(found, places(bytes(16), size=1000, count=100))


def test_different_rosters_and_dealers_have_other_masks(five: Path) -> None:
    """A server that shows different people around gets nothing that adds up."""
    zeros = np.zeros(4000, dtype=np.uint64)
    people, _ = entered(five, NAMES)
    deals = {place: Deal.unpack(people[place].deal(), people=5) for place in range(5)}
    people[0].receive({dealer: deals[dealer].entries[0] for dealer in range(4)})
    people[1].receive({dealer: deals[dealer].entries[1] for dealer in range(5)})
    roster = people[0].roster
    left = people[0].hide(zeros) + people[1].hide(zeros)
    left = left - own_mask(people[0]._seed, roster, 0, range(4), 4000)
    left = left - own_mask(people[1]._seed, roster, 1, range(5), 4000)
    for other in (2, 3, 4):
        left = left + pair_mask(people[other]._key, roster, other, 1, range(5), 4000)
        if other != 4:
            left = left + pair_mask(people[other]._key, roster, other, 0, range(4), 4000)
    assert looks_uniform(left)  # the two of them have other masks between them
    with pytest.raises(ValueError, match="other dealers than before"):
        people[0].receive({dealer: deals[dealer].entries[0] for dealer in range(5)})
    with pytest.raises(ValueError, match="2 of the round have dealt shares, and 3 must have"):
        entered(five, NAMES)[0][0].receive({0: b"", 1: b""})
