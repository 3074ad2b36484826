"""Every test here is run with arrays, and with the kernels compiled for each kind of processor that this one is."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shlex
import subprocess
import sysconfig
import tempfile
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import pytest

from tacit import _compiled, _normal
from tacit.gradients.factors import contribution as contributions
from tacit.gradients.kernels import batch_invariant_matmul as alike
from tacit.gradients.kernels import loops as narrow
from tacit.gradients.layers import conv_kernel as formed
from tacit.gradients.layers import pooling
from tacit.gradients.layers import rnn_steps as cells
from tacit.training import digests

SOURCE = Path(_compiled.__file__).with_name("_kernels.c")
USERS = (alike, cells, contributions, formed, narrow, pooling, digests)
"""The modules that use the kernels, beside `_normal`."""


@functools.cache
def built(version: str, *options: str) -> _compiled.Kernels:
    """The kernels compiled as `setup.py` does, for one kind of processor: once for every version of their sources."""
    command = [
        *shlex.split(sysconfig.get_config_var("CC") or "cc"),
        *("-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", f"-DBEST={version}", *options),
        *("-Wall", "-Werror", "-Wno-unused-function", f"-I{sysconfig.get_paths()['include']}"),
        str(SOURCE),
    ]
    files = [SOURCE, *sorted(SOURCE.parent.glob("_*/*.h")), *sorted(Path(__file__).parent.glob("*.h"))]
    key = hashlib.sha256(repr((command, [file.read_bytes() for file in files])).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"tacit-kernels-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    library = folder / f"{key}.so"
    with open(folder / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        if not library.exists():
            made = library.with_suffix(".new")
            try:
                subprocess.run([*command, "-o", str(made), "-lm"], check=True, capture_output=True)
            except FileNotFoundError:
                pytest.skip("there is no C compiler here")
            made.rename(library)
    loader = ExtensionFileLoader("tacit._kernels", str(library))
    spec = importlib.util.spec_from_loader("tacit._kernels", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(params=["arrays", "plain", "avx2", "avx512"], autouse=True)
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which is in use, everywhere: of the two ways to AES, the wide one only with the widest registers."""
    chosen = str(request.param)
    needed = {"avx2": ("avx2", "fma"), "avx512": ("avx512f", "avx512dq", "avx512vl", "avx512bw")}
    if not has(*needed.get(chosen, ())):
        pytest.skip(f"this processor has no {chosen}")
    cipher = ("-DAES=narrow_aes",) if has("aes") and not (chosen == "avx512" and has("vaes")) else ()
    kernels = None if chosen == "arrays" else built(chosen, *cipher)
    for module in USERS:
        monkeypatch.setattr(module, "kernels", kernels)
    monkeypatch.setattr(_normal, "kernels", kernels if kernels is not None and kernels.aes else None)
    return chosen


def has(*flags: str) -> bool:
    """Whether the processor says so."""
    known = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return all(f" {flag}" in known for flag in flags)
