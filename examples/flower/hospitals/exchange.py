"""Every hospital adds its own noise and keeps its own ledger; the server is trusted with nothing.

flwr run examples/flower federation --stream
"""

from pathlib import Path

from flwr.app import Context

from hospitals.task import network, records
from tacit.collaboration import LocalDpSgd, Settings
from tacit.flower import Host, Member, participant_app, server_app


def hospital(context: Context) -> Member:
    inputs, labels = records(context)
    privacy = LocalDpSgd(epsilon=float(context.node_config["epsilon"]), delta=1e-5)
    settings = Settings(epochs=int(context.run_config["epochs"]), privacy=privacy)
    folder = Path(str(context.node_config["folder"]))  # of this node: its ledger and what it is about to send
    return Member(network=network, inputs=inputs, labels=labels, settings=settings, folder=folder)


def host(context: Context) -> Host:
    config = context.run_config
    folder, participants = Path(str(config["folder"])), int(config["participants"])
    return Host(network=network, folder=folder, participants=participants, bound=1.0)


client = participant_app(hospital)
server = server_app(host)
