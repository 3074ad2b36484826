"""Collaborative training without sharing data: distributed selective SGD (Shokri & Shmatikov 2015).

The server, the participants and the lease are state machines without I/O; `simulate` runs them in one process.
"""

from tacit.collaboration.averaging import Averaging
from tacit.collaboration.calibration import Calibration, calibrate
from tacit.collaboration.comparison import compare, mechanism
from tacit.collaboration.exchange import Lease, LeaseHeld, Protocol
from tacit.collaboration.messages import Download, Upload
from tacit.collaboration.organisations import average, contribute, join, serve
from tacit.collaboration.parameters import FlatParameters
from tacit.collaboration.participant import LocalSgd, Participant, SelectedUploads
from tacit.collaboration.privacy import (
    Claim,
    GaussianPrivacy,
    GaussianUploads,
    LocalDpSgd,
    PrivateTraining,
    SparseVectorPrivacy,
    SparseVectorUploads,
)
from tacit.collaboration.problem import Problem, problem, raw_problem
from tacit.collaboration.refusals import Reason, Refused
from tacit.collaboration.selection import AboveThreshold, AtRandom, Largest
from tacit.collaboration.selective import SelectiveSGD
from tacit.collaboration.server import ParameterServer, Rules
from tacit.collaboration.settings import Settings
from tacit.collaboration.simulation import Baselines, Progress, Result, baselines, simulate

__all__ = [
    "AboveThreshold",
    "AtRandom",
    "Averaging",
    "Baselines",
    "Calibration",
    "Claim",
    "Download",
    "FlatParameters",
    "GaussianPrivacy",
    "GaussianUploads",
    "Largest",
    "Lease",
    "LeaseHeld",
    "LocalDpSgd",
    "LocalSgd",
    "ParameterServer",
    "Participant",
    "PrivateTraining",
    "Problem",
    "Progress",
    "Protocol",
    "Reason",
    "Refused",
    "Result",
    "Rules",
    "SelectedUploads",
    "SelectiveSGD",
    "Settings",
    "SparseVectorPrivacy",
    "SparseVectorUploads",
    "Upload",
    "average",
    "baselines",
    "calibrate",
    "compare",
    "contribute",
    "join",
    "mechanism",
    "problem",
    "raw_problem",
    "serve",
    "simulate",
]
