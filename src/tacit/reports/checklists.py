"""Answers to published checklists: NIST SP 800-226 and opinion 28/2024 of the European Data Protection Board.

An answer comes from the ledger, or says that the question is not covered.
"""

from __future__ import annotations

from tacit._version import __version__
from tacit.reports import statement
from tacit.reports.findings import Findings, Run

NOT_COVERED = "Not covered by this report"


def answers(run: Run, facts: Findings) -> list[tuple[str, str, str]]:
    """Return (source, question, answer) triples."""
    words = dict(statement.lines(run, facts))
    claim = statement.claim(facts.guarantee)
    power = "No bound: this run has no guarantee."
    if facts.private:
        share = statement.percent(facts.attack_power([0.01])[0])
        power = f"An attack that accuses 1 % of the others finds at most {share} of the members."
    nist = [
        ("What is the unit of privacy, and which data sets are neighbours?", words["Protected unit"]),
        ("What are ε and δ?", claim),
        ("How are several releases composed?", words["Accounting"]),
        ("Who is trusted?", words["Setting and trust"]),
        ("Which mechanisms were used, on which sample?", f"{words['Covered']} {words['Sampling']}"),
        ("How are numbers and randomness implemented?", f"{words['Randomness']} {words['Arithmetic']}"),
        ("Was tuning or preprocessing charged?", words["Hyperparameter search"]),
        ("Are side channels considered?", f"{NOT_COVERED}: time, memory and power are outside the guarantee."),
        ("How is access to the records controlled, and how were they collected?", f"{NOT_COVERED}."),
    ]
    board = [
        ("Were the sources chosen and the data minimised before training?", f"{NOT_COVERED}."),
        ("Which technique limits what the model says about a person?", claim),
        ("How likely is it that a person is singled out by queries or by the parameters?", power),
        ("Was resistance to attacks tested?", words["Audit"]),
        (
            "Is the training documented so that an authority can check it?",
            f"The ledger lists all releases: {len(run.ledger)} steps, digest {run.ledger.digest}; tacit {__version__}.",
        ),
        ("On what legal basis were the records processed?", f"{NOT_COVERED}; the sign-off has a line for the purpose."),
    ]
    return [("NIST SP 800-226", *row) for row in nist] + [("EDPB opinion 28/2024", *row) for row in board]
