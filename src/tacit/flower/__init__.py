"""Federations on Flower: Tacit's participants and parameter server as ClientApp and ServerApp, and private averaging.

Needs the extra ``flower`` (flwr). Flower carries the messages and knows who is who; what is sent, what is charged and
what survives a crash is decided by the parts of `tacit.collaboration`, as over our own gRPC.
"""

import importlib.util

if importlib.util.find_spec("flwr") is None:
    raise ValueError(
        "a federation on Flower needs flwr; install it with: pip install -c constraints-flower.txt 'tacit[flower]'"
    )

from tacit.collaboration.averaging import Averager, Averaging
from tacit.flower.joining import Member, answer, participant_app
from tacit.flower.rounds import average, averaging_app, update_app
from tacit.flower.serving import Host, serve, server_app

__all__ = [
    "Averager",
    "Averaging",
    "Host",
    "Member",
    "answer",
    "average",
    "averaging_app",
    "participant_app",
    "serve",
    "server_app",
    "update_app",
]
