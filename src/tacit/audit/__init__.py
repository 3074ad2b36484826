"""Attacks on our own claim: lower bounds on ε, measured on the real training path or on a finished model.

    setting = Setting(records=100, lot_size=100, steps=1, noise_multiplier=1.0, delta=1e-5)
    print(many_runs(setting))       # two neighbouring data sets, told apart again and again
    print(one_run(setting))         # many canaries in one run, told from those left out
    print(input_run(setting))       # the same from losses of the finished model alone
    print(language_run(setting))    # secrets in a language model, by their exposure

`tacit.audit.lira` is the likelihood-ratio attack on membership; `tacit.audit.inversion` recovers records from
gradients.

A bound above the claim is a proof, at the stated confidence, that the code or the claim is wrong. A bound below it is
no proof of anything.
"""

from __future__ import annotations

from tacit.audit.exposure import Exposure, language_run
from tacit.audit.inputs import input_run
from tacit.audit.membership import Membership
from tacit.audit.replay import setting_of
from tacit.audit.result import Audit
from tacit.audit.runs import many_runs, one_run
from tacit.audit.setting import Setting

__all__ = [
    "Audit",
    "Exposure",
    "Membership",
    "Setting",
    "input_run",
    "language_run",
    "many_runs",
    "one_run",
    "setting_of",
]
