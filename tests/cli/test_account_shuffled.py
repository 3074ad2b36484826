"""`tacit account` for lots that are dealt out: random allocation, and shuffled lots side by side with it."""

import json

import pytest
from typer.testing import CliRunner

from tacit.cli import app

PLAN = ["account", "--noise-multiplier", "2", "--delta", "1e-5", "--sampling-rate", "0.1"]


def facts(*options: str) -> dict[str, float]:
    done = CliRunner().invoke(app, [*PLAN, *options, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_shuffled_lots_are_compared_with_what_is_claimed_for_them() -> None:
    found = facts("--sampling", "shuffled", "--compare", "--steps", "100")
    assert found["epsilon_lower"] <= found["epsilon_allocation"] < found["epsilon_poisson_claim"]
    assert found["epsilon_poisson_claim"] < 0.5 * found["epsilon"] < found["epsilon_replace_one"]
    assert found["poisson_claim_refuted"] is False
    assert found["epsilon_allocation"] == facts("--sampling", "allocation", "--steps", "100")["epsilon"]
    assert found["epsilon"] == facts("--sampling", "shuffled", "--steps", "100")["epsilon"]


def test_a_claim_below_the_lower_bound_is_called_wrong() -> None:
    done = CliRunner().invoke(app, [*PLAN, "--sampling", "shuffled", "--compare", "--steps", "100000"])
    assert done.exit_code == 0
    assert "is WRONG here" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sampling", "uniform", "--steps", "10"], "--sampling is 'uniform'; choose poisson, allocation or shuffled"),
        (["--compare", "--steps", "10"], "--compare is for --sampling shuffled"),
    ],
)
def test_the_plan_refuses_an_unknown_sampling_and_a_misplaced_compare(options: list[str], message: str) -> None:
    done = CliRunner().invoke(app, [*PLAN, *options])
    assert done.exit_code != 0
    assert message in str(done.exception) + done.output
