"""Training between organisations: `serve` on one machine, `join` at every participant; `average` and `contribute`.

All need the extra ``collab`` (grpcio). The commands of ``tacit collaborate`` call them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch.nn.functional as F
from torch import nn

from tacit.collaboration.averaging import Averaging
from tacit.collaboration.dataset import Loss
from tacit.collaboration.privacy import LocalDpSgd, Privacy
from tacit.collaboration.settings import Settings

if TYPE_CHECKING:
    from tacit.collaboration.network import Credentials
    from tacit.collaboration.network.averaging import AveragingService
    from tacit.collaboration.network.contributing import Contribution
    from tacit.collaboration.network.hosting import Terms
    from tacit.collaboration.network.joining import Stand
    from tacit.collaboration.network.running import Server
    from tacit.collaboration.network.shared_averaging import SharedAveragingService
    from tacit.collaboration.network.status import Access

Network = Callable[[], nn.Module]
Folder = str | os.PathLike[str]


def serve(
    state: Folder,
    *,
    network: Network | str | None = None,
    keys: Folder | None = None,
    listen: str = "127.0.0.1:8470",
    admit: Sequence[str] = (),
    validate: Any = None,
    validate_name: str = "public records",
    lease: float = 60.0,
    patience: float = 10.0,
    status: Access | None = None,
    **terms: Any,
) -> Server:
    """Start a parameter server and return it; a server that was begun before goes on from ``state``.

        with tacit.collaboration.serve("run", network=build, keys="keys", admit=["north", "south"]) as server:
            server.wait()

    * ``network`` builds the model: any function without arguments that returns an ``nn.Module`` (or ``"mlp"``,
      ``"cnn"``: the paper's). Its trainable parameters, float32 on the CPU, are shared; buffers and frozen parameters
      stay where they are and must be built the same everywhere, which participants compare.
    * ``keys`` is a folder of ``tacit collaborate keys``; without it only this machine is served, without TLS.
    * ``admit`` names those who may take part.
    * ``validate``: public records, a data set or a tuple of tensors, on which accuracy is shown.
    * ``terms`` are those of `tacit.collaboration.network.hosting.Terms`: ``bound`` (γ), ``upload`` (θ_u), ``protocol``,
      ``pool``, ``part``, ``shape`` (of one record's input), ``schema``, and what participants promise each other:
      ``mechanism``, ``epsilon``, ``delta``. They hold from the first start on.
    * ``status``: a `tacit.collaboration.network.status.Access`, where to show a status page, health and metrics.
    * ``lease`` and ``patience``: seconds that a turn lasts, and that it waits for the next participant.
    """
    from tacit.collaboration.network import Credentials, Service
    from tacit.collaboration.network.hosting import Terms, open_state
    from tacit.collaboration.network.judge import judge_of
    from tacit.collaboration.network.running import Server
    from tacit.collaboration.network.status import StatusPage

    own = None if network is None or isinstance(network, str) else network
    name = network if isinstance(network, str) else None if own is None else _name(own)
    images = validate if own is None and _is_images(validate) else None
    wanted: Terms = Terms(model=name, **terms)
    service = Service(open_state(Path(state), wanted, admit, images, own), lease=lease, patience=patience)
    try:
        judge = None if validate is None else judge_of(service, validate, network=own, name=validate_name)
        credentials = None if keys is None else Credentials.read(Path(keys), "server")
        page = None if status is None else StatusPage(service, judge, status)
        return Server(service, listen, credentials, judge=judge, page=page)
    except BaseException:
        service.close()
        raise


def join(
    server: str | Sequence[str],
    *,
    name: str,
    dataset: Any,
    privacy: Privacy | Callable[[Settings], Privacy | None] | None,
    network: Network | None = None,
    loss: Loss = F.cross_entropy,
    schema: str = "",
    keys: Folder | None = None,
    folder: Folder | None = None,
    epochs: int = 15,
    pool: int = 0,
    ledger: Folder | None = None,
    lost_key: bool = False,
    older_server: bool = False,
    tell: Callable[[str], None] | None = None,
    progress: Callable[[Stand], None] | None = None,
    ended: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> Stand:
    """Take part with records that stay here until the epochs are done or the budget is spent; then return the model.

        stand = tacit.collaboration.join(
            "training.example.org:8470", name="north", keys="keys", network=build, dataset=records,
            privacy=LocalDpSgd(epsilon=8.0, delta=1e-5), epochs=15, learning_rate=0.1,
        )
        print(stand.claim)                            # what it has cost, from the ledger in runs/north

    * ``dataset``: a PyTorch data set of (input, ..., target), or a tuple of tensors. For the paper's networks: images
      (uint8) and labels, and no ``network``.
    * ``network`` and ``loss``: as the server's, built here. The architecture, the shape of records, the ``schema`` of
      tables (JSON), the mechanism and the budget are compared with the agreement before anything is charged or sent.
    * ``privacy``: `LocalDpSgd`, `GaussianPrivacy`, `SparseVectorPrivacy`, or None for uploads without any guarantee;
      also a function that returns one of them for the settings that were agreed on.
    * ``folder`` (runs/NAME) has the ledger and the outbox; after a crash the same call goes on from there.
    * ``settings`` are those of `Settings`: ``learning_rate``, ``batch_size``, ``download``, ``selection``, and so on.
    * ``pool``, ``ledger``, ``lost_key`` and ``older_server``: see ``tacit collaborate join --help``.
    * ``ended`` is asked between exchanges; when it says yes, the participant stops there.
    """
    from tacit.collaboration.network import Credentials, Link, find_shards
    from tacit.collaboration.network.joining import agreed_settings
    from tacit.collaboration.network.joining import join as take_part

    addresses = [server] if isinstance(server, str) else list(server)
    credentials = None if keys is None else Credentials.read(Path(keys), name)
    if credentials is not None and credentials.name != name:
        raise ValueError(f"name is {name!r}, but the certificate {keys}/{name}.pem is for {credentials.name!r}.")
    links = [Link(address, credentials, name=name, tell=tell, ended=ended) for address in addresses]
    try:
        shards = find_shards(links)
        own = agreed_settings(shards[0].agreement, Settings(participants=1, epochs=epochs, **settings))
        chosen = privacy(own) if callable(privacy) else privacy
        own = replace(own, privacy=chosen, delta=getattr(chosen, "delta", own.delta))
        return take_part(
            shards,
            name,
            credentials,
            dataset,
            Path(folder) if folder is not None else Path("runs") / name,
            own,
            network=network,
            loss=loss,
            schema=schema,
            pool=pool,
            ledger=None if ledger is None else Path(ledger),
            lost_key=lost_key,
            older_server=older_server,
            progress=progress,
            ended=ended,
        )
    finally:
        for link in links:
            link.close()


class AveragingServer:
    """A server of private averaging that listens, until `stop`; also a context manager."""

    def __init__(
        self, service: AveragingService | SharedAveragingService, listen: str, credentials: Credentials | None
    ) -> None:
        from tacit.collaboration.network import GrpcServer

        self.service, self._grpc = service, GrpcServer(service, listen, credentials)
        self.address = f"{listen.rpartition(':')[0]}:{self._grpc.port}"
        self._grpc.start()

    def stop(self) -> None:
        """Answer what was begun and let go of the state."""
        self._grpc.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def average(
    averaging: Averaging, *, admit: Sequence[str], keys: Folder | None = None, listen: str = "127.0.0.1:8470"
) -> AveragingServer:
    """Start a server that averages the changes of whole participants, and return it.

    The guarantee is for whole participants: by the server's noise against everybody but the server, by the
    participants' own (``averaging.noise_by``) against the server too. State and ledger are in ``averaging.folder``.
    `contribute` takes part.
    """
    from tacit.collaboration.network import Credentials
    from tacit.collaboration.network.averaging import AveragingService
    from tacit.collaboration.network.shared_averaging import SharedAveragingService

    shared = averaging.noise_by == "participants"
    if shared and keys is None:
        raise ValueError("noise by the participants needs certificates, which their masks are made with: give keys.")
    service = SharedAveragingService(averaging, admit) if shared else AveragingService(averaging, admit)
    try:
        return AveragingServer(service, listen, None if keys is None else Credentials.read(Path(keys), "server"))
    except BaseException:
        service.close()
        raise


def contribute(
    server: str,
    *,
    name: str,
    network: Network,
    dataset: Any,
    loss: Loss = F.cross_entropy,
    keys: Folder | None = None,
    folder: Folder | None = None,
    privacy: LocalDpSgd | None = None,
    most_epsilon: float | None = None,
    masked: bool = False,
    tell: Callable[[str], None] | None = None,
    ended: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> Contribution:
    """Take part in private averaging until it is over; return the model and both guarantees.

    Arguments are those of `join`. Here ``privacy`` is for local training alone, beside the noise of the sums, and
    ``most_epsilon`` the largest ε of a whole participant, at ``delta``, that is agreed to. ``masked`` refuses a server
    that would see this participant's change.
    """
    from tacit.collaboration.network import Credentials, Link
    from tacit.collaboration.network.contributing import contribute as take_part

    credentials = None if keys is None else Credentials.read(Path(keys), name)
    link = Link(server, credentials, name=name, tell=tell, ended=ended)
    try:
        return take_part(
            link,
            name,
            network=network,
            dataset=dataset,
            folder=Path(folder) if folder is not None else Path("runs") / name,
            loss=loss,
            privacy=privacy,
            most_epsilon=most_epsilon,
            credentials=credentials,
            masked=masked,
            ended=ended,
            **settings,
        )
    finally:
        link.close()


def _name(network: Network) -> str:
    """Return a name for people to read."""
    module, title = getattr(network, "__module__", ""), getattr(network, "__qualname__", type(network).__name__)
    return f"{module}:{title}"


def _is_images(records: Any) -> bool:
    return isinstance(records, tuple) and len(records) == 2
