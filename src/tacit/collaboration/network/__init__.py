"""Collaboration over a real network: gRPC with mutual TLS, durable state on both sides, no trust in the other.

Needs the extra ``collab`` (grpcio). The parts of `tacit.collaboration` do the work; here they are carried.
"""

import importlib.util

if importlib.util.find_spec("grpc") is None:
    raise ValueError("a collaboration over a network needs grpcio; install it with: pip install 'tacit[collab]'")

from tacit.collaboration.network.agreement import Agreement
from tacit.collaboration.network.keys import Credentials, make_keys
from tacit.collaboration.network.link import Link, Unreachable
from tacit.collaboration.network.membership import Membership, Shard, find_shards
from tacit.collaboration.network.service import Service
from tacit.collaboration.network.serving import GrpcServer
from tacit.collaboration.network.store import Store

__all__ = [
    "Agreement",
    "Credentials",
    "GrpcServer",
    "Link",
    "Membership",
    "Service",
    "Shard",
    "Store",
    "Unreachable",
    "find_shards",
    "make_keys",
]
