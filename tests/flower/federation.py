"""A SuperLink and SuperNodes on this machine, with TLS and a registered key for each node, telemetry off."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.collaboration.network import make_keys

BIN = Path(sys.executable).parent
APP = """
[project]
name = "{name}"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "tacit"

[tool.flwr.app.components]
serverapp = "{name}.app:server"
clientapp = "{name}.app:client"

[tool.flwr.app.config]
folder = ""
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait(condition: Callable[[], Any], what: str, seconds: float = 300.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.5)
    raise AssertionError(f"waited {seconds:g} s for {what}")


class Federation:
    """Everything in ``folder``; `stop` ends what was started here and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._processes = folder, free_port(), []
        self._keys = folder / "keys"
        make_keys(self._keys, servers=["127.0.0.1"], participants=[])
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self._keys / "ca.pem"}"\n'
        )
        self.environment = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        self.link = self._start(
            "superlink",
            *self._certificates(),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            f"--database={folder / 'link.db'}",
            "--host=127.0.0.1",
            f"--port={self.port}",
        )
        wait(lambda: "startup complete" in self.log("superlink"), "the SuperLink")

    def _certificates(self) -> list[str]:
        names = {"ca-certfile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
        return [f"--ssl-{option}={self._keys / name}" for option, name in names.items()]

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [BIN / f"flower-{name.partition('-')[0]}", *arguments],
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def cli(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [BIN / "flwr", *arguments, "--format", "json"], capture_output=True, env=self.environment, timeout=300
        )
        found = json.loads(done.stdout)
        assert found["success"], found
        return dict(found)

    def node(self, number: int, of: int, *, registered: bool = True) -> int | None:
        """Start a SuperNode whose key is registered, or one whose key is not."""
        key = ec.generate_private_key(ec.SECP384R1())
        private, public = self.folder / f"node{number}", self.folder / f"node{number}.pub"
        encoding, form = serialization.Encoding, serialization.PrivateFormat.OpenSSH
        private.write_bytes(key.private_bytes(encoding.PEM, form, serialization.NoEncryption()))
        public.write_bytes(key.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
        own = self.folder / f"own{number}"
        known = int(self.cli("supernode", "register", str(public), "here")["node-id"]) if registered else None
        self._start(
            f"supernode-{number}",
            f"--root-certificates={self._keys / 'ca.pem'}",
            f"--superlink=127.0.0.1:{self.port}",
            f"--auth-supernode-private-key={private}",
            f'--node-config=partition-id={number} num-partitions={of} epsilon=8.0 folder="{own}"',
            "--host=127.0.0.1",
            f"--port={free_port()}",
            *self._certificates(),
        )
        return known

    def app(self, name: str, source: str, *files: Path) -> Path:
        """A Flower app of one module, beside ``files``."""
        package = self.folder / "apps" / name / name
        package.mkdir(parents=True)
        (package.parent / "pyproject.toml").write_text(APP.format(name=name))
        (package / "__init__.py").write_text("")
        (package / "app.py").write_text(source)
        for file in files:
            (package / file.name).write_text(file.read_text())
        return package.parent

    def run(self, app: Path, folder: Path, *more: str) -> str:
        config = " ".join([f'folder="{folder}"', *more])
        return str(self.cli("run", str(app), "here", "--run-config", config)["run-id"])

    def status(self, run: str) -> str:
        found = [known for known in self.cli("list", "here")["runs"] if known["run-id"] == run]
        return str(found[0]["status"])

    def finish(self, run: str, seconds: float = 500.0) -> None:
        found = wait(
            lambda: (state := self.status(run)).startswith("finished") and state, f"the end of run {run}", seconds
        )
        assert found == "finished:completed", self.log("superlink")[-4000:]

    def serverapps(self) -> list[int]:
        """Processes of ServerApps that this SuperLink has started."""
        parents, commands = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    commands[int(entry.name)] = (entry / "cmdline").read_bytes()
                except (OSError, ValueError):
                    continue  # it has ended meanwhile
        ours, grown = {self.link.pid}, True
        while grown:
            more = {child for child, parent in parents.items() if parent in ours} - ours
            ours, grown = ours | more, bool(more)
        return [child for child in ours if b"flwr-serverapp" in commands.get(child, b"")]

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what it has started
            except ProcessLookupError:
                continue
