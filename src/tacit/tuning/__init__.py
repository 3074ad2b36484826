"""Choosing settings, and paying for it.

* `try_all`: one run for each setting, everything charged and everything visible.
* `choose`: the best of a random number of runs, nothing else visible, at little more than the price of one run.
* `plan`: the noise that such runs need to fit a budget.
* `PrivateAccuracy`: a score from validation records. `median_gradient_norm`: a clip norm. `NormHistogram`: how long
  gradients are.
* `TargetSearch`: the numbers of Theorem D.1 of Abadi et al. 2016.
"""

from tacit.tuning.choice import NoTrial, Outcome, TrialFailed, choose, try_all
from tacit.tuning.cover import TrialOverrun
from tacit.tuning.histogram import NormHistogram
from tacit.tuning.norm import median_gradient_norm
from tacit.tuning.plan import TunedPlan, plan
from tacit.tuning.score import PrivateAccuracy
from tacit.tuning.target import TargetSearch, most_settings
from tacit.tuning.trials import PoissonTrials, Trials, TruncatedNegativeBinomial

__all__ = [
    "NoTrial",
    "NormHistogram",
    "Outcome",
    "PoissonTrials",
    "PrivateAccuracy",
    "TargetSearch",
    "TrialFailed",
    "TrialOverrun",
    "Trials",
    "TruncatedNegativeBinomial",
    "TunedPlan",
    "choose",
    "median_gradient_norm",
    "most_settings",
    "plan",
    "try_all",
]
