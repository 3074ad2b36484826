"""The planner's mathematics in JavaScript against the Python accountants, and its page in a browser."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tacit.accounting import Guarantee, guarantee, plan
from tacit.cli import main
from tacit.ledger import events as ev
from tacit.reports.planner import mathematics, planner_page

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed (Debian: apt-get install nodejs)")


def run(program: str, given: Any) -> Any:
    """Run ``program`` after the planner's scripts; ``given`` is its variable of that name, and it prints JSON."""
    assert NODE is not None
    text = (
        f'"use strict";\n{mathematics()}\nconst given = JSON.parse(require("fs").readFileSync(0, "utf8"));\n{program}'
    )
    done = subprocess.run([NODE, "-e", text], input=json.dumps(given), capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def points(count: int, seed: int) -> list[tuple[float, float, int, float]]:
    """Return (q, σ, T, δ) of plans that people make: 10³ to 10⁸ records, 1 to 500 epochs."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        records, lot = 10 ** draw.uniform(3, 8), 10 ** draw.uniform(1, 5)
        steps = round(10 ** draw.uniform(0, 2.7) * records / lot)
        if lot <= records / 4 and 20 <= steps <= 300_000:
            found.append((lot / records, 10 ** draw.uniform(-0.25, 1.3), steps, 10 ** draw.uniform(-10, -4)))
    return found


def certified(rate: float, noise: float, steps: int, **target: float) -> Guarantee:
    query = ev.GaussianSum(group="gradients", clip_norm=1.0, noise_std=noise)
    entries = [(ev.Step(ev.Poisson(rate=rate, records=10**6), (query,)), steps)]
    header = ev.Header(adjacency=ev.Adjacency.ADD_REMOVE, unit="example")
    return guarantee(entries, header, **target)


def compare(count: int, seed: int) -> float:
    """Compare ε at many points; return the share at which the page has the tight interval."""
    queries = points(count, seed)
    tight = 0
    for query, found in zip(queries, run("console.log(JSON.stringify(given.map((q) => epsilonOf(...q))));", queries)):
        known = certified(*query[:3], delta=query[3])
        assert known.epsilon_lower is not None
        assert found["upper"] >= known.epsilon_lower * (1 - 1e-12), query
        if found["lower"] is not None:
            assert found["lower"] <= known.epsilon * (1 + 1e-12), query
            if found["upper"] - found["lower"] <= 1e-6 * found["upper"]:
                tight += 1
                assert found["upper"] == pytest.approx(known.epsilon, rel=1e-6, abs=1e-9), query
    return tight / count


@needs_node
def test_page_and_accountant_agree_at_random_plans() -> None:
    assert compare(24, seed=5) >= 0.85


@needs_node
@pytest.mark.slow
def test_page_and_accountant_agree_at_500_plans() -> None:
    assert compare(500, seed=11) >= 0.9


@needs_node
def test_delta_and_closed_forms_agree_with_the_accountant() -> None:
    queries = [
        (0.01, 1.0, 1000, 2.0),
        (0.001, 0.8, 20_000, 1.0),
        (0.02, 1.5, 1, 0.3),
        (1.0, 3.0, 4, 2.0),
        (1.0, 5.0, 1, 1.0),
    ]
    for query, found in zip(queries, run("console.log(JSON.stringify(given.map((q) => deltaOf(...q))));", queries)):
        known = certified(*query[:3], epsilon=query[3])
        assert found["upper"] == pytest.approx(known.delta, rel=2e-6), query
        assert found["lower"] <= found["upper"]
    costs = [(0.02, 1.5, 1, 1e-5), (1.0, 3.0, 4, 1e-5)]
    for query, found in zip(costs, run("console.log(JSON.stringify(given.map((q) => epsilonOf(...q))));", costs)):
        assert found["upper"] == pytest.approx(certified(*query[:3], delta=query[3]).epsilon, rel=1e-6)


@needs_node
def test_where_inversion_is_out_of_reach_the_bound_holds_and_has_no_lower_end() -> None:
    found = run("console.log(JSON.stringify(epsilonOf(...given)));", (0.2, 1.0, 4, 1e-5))
    assert found["lower"] is None
    assert certified(0.2, 1.0, 4, delta=1e-5).epsilon <= found["upper"] < 20


@needs_node
@pytest.mark.parametrize(("free", "name"), [("noise", "noise_multiplier"), ("lot", "lot_size"), ("epochs", "steps")])
def test_solver_finds_what_the_library_finds(free: str, name: str) -> None:
    given = {"records": 60_000, "lot": 600, "epochs": 40.0, "noise": 1.5, "epsilon": 2.0, "delta": 1e-5}
    program = "solvePlan(given[0], given[1], async () => {}).then((found) => console.log(JSON.stringify(found)));"
    found = run(program, (given, free))
    settings: dict[str, Any] = {"lot_size": 600, "epochs": 40.0, "noise_multiplier": 1.5, "epsilon": 2.0, "delta": 1e-5}
    del settings["epochs" if free == "epochs" else name]
    known = plan(records=60_000, **settings)
    mine = round(found["epochs"] * 100) if free == "epochs" else found[free]
    assert mine == pytest.approx(getattr(known, name), rel=2e-3)
    assert (
        certified(
            found["lot"] / 60_000, found["noise"], round(found["epochs"] * 60_000 / found["lot"]), delta=1e-5
        ).epsilon
        <= 2.0
    )


@needs_node
def test_attack_bounds_are_the_reports() -> None:
    from tacit.accounting.guarantee import attack_bounds

    curve, rates = [(0.0, 0.3), (1.0, 0.02), (2.0, 1e-3)], [0.0, 0.01, 0.1, 0.5, 1.0]
    found = run("console.log(JSON.stringify(attackBounds(given[0], given[1])));", (curve, rates))
    assert found == pytest.approx(attack_bounds(curve, rates))


@needs_node
def test_a_delta_is_shown_rounded_up_and_copied_whole() -> None:
    script = resources.files("tacit.reports.planner").joinpath("page.js").read_text("utf-8").split("function build")[0]
    program = f"{script}\nconsole.log(JSON.stringify(given.map((d) => [deltaUp(d), exact(d)])));"
    deltas = [1e-5, 1.2345e-5, 3.2101e-6, 9.999e-7, 2e-3, 1.23456e-3]
    for delta, (shown, copied) in zip(deltas, run(program, deltas)):
        assert delta <= float(shown) * (1 + 1e-12) and float(shown) <= delta * 1.01
        assert float(copied) == pytest.approx(delta, rel=1e-11)
    assert run(program, [1e-5]) == [["1e-5", "1e-5"]]


def test_the_command_writes_one_file_that_names_no_other(tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    with pytest.raises(SystemExit) as ended:
        main(["planner", "--out", str(path), "--json"])
    assert ended.value.code == 0
    page = path.read_text("utf-8")
    assert page == planner_page()
    assert not re.search(r"(src|href)=[\"'](?!data:)|@import|url\(|fetch\(|XMLHttpRequest|https?://", page)
    assert "/*" + "mathematics*/" not in page and "default-src 'none'" in page


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_computes_in_a_browser(tmp_path: Path, width: int) -> None:
    page = tmp_path / "plan.html"
    page.write_text(planner_page(), "utf-8")
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=60000",
    ]
    options += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2400", "--dump-dom"]
    done = subprocess.run([str(CHROMIUM), *options, page.as_uri()], capture_output=True, text=True, timeout=180)
    assert "CONSOLE" not in done.stderr
    assert 'data-ready="yes"' in done.stdout
    assert "(ε ≤ 2.00, δ = 1e-5) example-level" in done.stdout
    assert "tacit plan --records 60000 --lot-size 600 --steps 4000 --epsilon 2 --delta 1e-5" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize("free", ["delta", "epsilon", "epochs", "lot"])
def test_the_command_of_the_page_leaves_out_what_was_solved_for(tmp_path: Path, free: str) -> None:
    """A slider is moved, another quantity is solved for, and ``tacit plan`` agrees with the page."""
    page = tmp_path / "plan.html"
    act = (
        f"document.querySelector('input[value=\"{free}\"]').click();"
        "const slide = element('slide-noise'); slide.value = 400; slide.dispatchEvent(new Event('input'));"
    )
    page.write_text(planner_page().replace("</body>", f"<script>{act}</script></body>"), "utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    shown = subprocess.run([str(CHROMIUM), *options], capture_output=True, text=True, timeout=180).stdout
    (command,) = re.findall(r'<code id="command">tacit (plan [^<]+)</code>', shown)
    option = {"delta": "--delta", "epsilon": "--epsilon", "epochs": "--steps", "lot": "--lot-size"}[free]
    assert option not in command and "--noise-multiplier 1.82" in command
    claimed = re.search(r"\(ε ≤ ([\d.]+), δ = ([\d.e-]+)\).*?σ = [\d.]+, (\d+) steps of (\d+)", shown)
    assert claimed is not None
    epsilon, delta, steps, lot = map(float, claimed.groups())
    assert certified(lot / 60_000, 0.2 * 250**0.4, round(steps), delta=delta).epsilon <= epsilon
