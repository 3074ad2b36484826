"""A second device for tests, without a GPU: see `second_device.cpp`. Load it in a process of its own."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.cpp_extension import get_cxx_compiler, include_paths, library_paths

SOURCE = Path(__file__).with_name("second_device.cpp")
NAME = "second"

_Listener = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_long, ctypes.c_int)


@dataclass
class Counts:
    """What happened on the device: launches and synchronisations by name."""

    launches: Counter[str] = field(default_factory=Counter)
    syncs: Counter[str] = field(default_factory=Counter)


Watch = Callable[[str, int, bool], None]
"""Called with every event: its name, how often, and whether the host waits."""


class SecondDevice:
    """The device, loaded once into this process."""

    def __init__(self) -> None:
        torch.utils.rename_privateuse1_backend(NAME)
        library = build()
        torch.ops.load_library(str(library))
        self._library = ctypes.CDLL(str(library))
        torch._register_device_module(NAME, _module())
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)
        self._library.second_device_install()

    @contextmanager
    def counting(self, watch: Watch | None = None) -> Iterator[Counts]:
        """Count what happens inside."""
        counts = Counts()

        def heard(name: bytes, times: int, waits: int) -> None:
            (counts.syncs if waits else counts.launches)[name.decode()] += times
            if watch is not None:
                watch(name.decode(), times, bool(waits))

        listener = _Listener(heard)
        self._library.second_device_listen(listener)
        try:
            yield counts
        finally:
            self._library.second_device_listen(ctypes.cast(None, _Listener))


def build() -> Path:
    """Compile the device, once for each version of its source and of torch."""
    key = hashlib.sha256(SOURCE.read_bytes() + f"{torch.__version__} {sys.version}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "tacit-second-device"
    folder.mkdir(exist_ok=True)
    library = folder / f"second_device-{key}.so"
    with open(folder / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        if not library.exists():
            made = library.with_suffix(".new")
            subprocess.run(
                [
                    get_cxx_compiler(),
                    *("-shared", "-fPIC", "-std=c++20", "-O0", "-w"),
                    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
                    *(f"-I{path}" for path in include_paths("cpu")),
                    *(str(SOURCE), "-o", str(made)),
                    *(f"-L{path}" for path in library_paths("cpu")),
                    *("-lc10", "-ltorch_cpu"),
                ],
                check=True,
            )
            made.rename(library)
    return library


def _module() -> ModuleType:
    """What PyTorch asks the module of a device for."""
    module: Any = ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.manual_seed = module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16, torch.float32]
    module.synchronize = lambda device=None: None
    found: ModuleType = module
    return found
