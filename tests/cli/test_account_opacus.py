"""``tacit account --from-opacus``: an old claim is checked from the accountant's history."""

import json

import pytest
from typer.testing import CliRunner

from tacit.accounting import Composition
from tacit.accounting.accountants import find
from tacit.accounting.composition import Gaussian, Policy, Term
from tacit.cli import app
from tacit.ledger import Adjacency

ROWS = [[1.1, 0.01, 300], [0.9, 0.02, 50]]


def ask(*arguments):
    return CliRunner().invoke(app, ["account", *map(str, arguments)])


@pytest.mark.parametrize("data", [ROWS, {"history": ROWS, "mechanism": "rdp"}])
def test_a_history_costs_what_its_steps_cost(tmp_path, data):
    path = tmp_path / "history.json"
    path.write_text(json.dumps(data))
    done = ask("--from-opacus", path, "--delta", "1e-5", "--json")
    assert done.exit_code == 0, done.output
    terms = tuple((Term(Gaussian(noise), Policy.POISSON, rate), count) for noise, rate, count in ROWS)
    exact = find("pld").epsilon(Composition(Adjacency.ADD_REMOVE, terms), 1e-5)
    assert json.loads(done.output)["epsilon"] == pytest.approx(exact.upper, rel=1e-9)


def test_the_claim_of_the_installed_opacus_is_not_below_the_certified_lower_bound(tmp_path):
    """Opacus's own RDP accountant is an upper bound; the history it keeps is what is read."""
    accountants = pytest.importorskip("opacus.accountants")
    theirs = accountants.RDPAccountant()
    for _ in range(200):
        theirs.step(noise_multiplier=1.1, sample_rate=0.01)
    path = tmp_path / "history.json"
    path.write_text(json.dumps(theirs.history))
    found = json.loads(ask("--from-opacus", path, "--delta", "1e-5", "--json").output)
    assert found["epsilon_lower"] <= found["epsilon"] <= theirs.get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\x80 not JSON", "not JSON"),
        ("[]", "no history"),
        ("[[1.0, 0.1]]", "must be [noise multiplier"),
        ("[[1.0, 0.1, 2.5]]", "whole number above 0"),
        ("[[0, 0.1, 2]]", "number above 0"),
        ("[[1.0, 1.5, 2]]", "sampling rate is 1.5"),
    ],
)
def test_a_file_that_is_no_history_is_refused_by_name(tmp_path, text, says):
    path = tmp_path / "history.json"
    path.write_text(text)
    done = ask("--from-opacus", path, "--delta", "1e-5")
    assert done.exit_code == 2 or isinstance(done.exception, ValueError)
    assert says in (done.output + str(done.exception))


def test_a_history_is_not_mixed_with_a_plan(tmp_path):
    path = tmp_path / "history.json"
    path.write_text(json.dumps(ROWS))
    done = ask("--from-opacus", path, "--steps", "10", "--delta", "1e-5")
    assert "--steps is for plans" in (done.output + str(done.exception))
