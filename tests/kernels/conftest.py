"""Every test here is run with arrays, and with the kernels compiled for each kind of processor that this one is."""

from __future__ import annotations

import functools
import importlib.util
import shlex
import subprocess
import sysconfig
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
def built(version: str, folder: Path, *options: str) -> _compiled.Kernels:
    """The kernels compiled as `setup.py` does, for one kind of processor."""
    library = folder / f"{version}-{len(list(folder.iterdir()))}.so"
    command = [
        *shlex.split(sysconfig.get_config_var("CC") or "cc"),
        *("-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", f"-DBEST={version}", *options),
        *("-Wall", "-Werror", "-Wno-unused-function", f"-I{sysconfig.get_paths()['include']}"),
        *(str(SOURCE), "-o", str(library), "-lm"),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler here")
    loader = ExtensionFileLoader("tacit._kernels", str(library))
    spec = importlib.util.spec_from_loader("tacit._kernels", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(params=["arrays", "plain", "avx2", "avx512"], autouse=True)
def arithmetic(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which is in use, everywhere: of the two ways to AES, the wide one only with the widest registers."""
    chosen = str(request.param)
    needed = {"avx2": ("avx2", "fma"), "avx512": ("avx512f", "avx512dq", "avx512vl", "avx512bw")}
    if not has(*needed.get(chosen, ())):
        pytest.skip(f"this processor has no {chosen}")
    cipher = ("-DAES=narrow_aes",) if has("aes") and not (chosen == "avx512" and has("vaes")) else ()
    kernels = None if chosen == "arrays" else built(chosen, folder, *cipher)
    for module in USERS:
        monkeypatch.setattr(module, "kernels", kernels)
    monkeypatch.setattr(_normal, "kernels", kernels if kernels is not None and kernels.aes else None)
    return chosen


def has(*flags: str) -> bool:
    """Whether the processor says so."""
    known = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return all(f" {flag}" in known for flag in flags)
