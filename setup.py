"""The compiled part of the package; everything else about it is in pyproject.toml."""

import os
from pathlib import Path

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tacit._kernels",
            ["src/tacit/_kernels.c"],
            depends=sorted(map(str, Path("src/tacit").glob("_*/*.h"))),
            # Nothing here looks at errno or floating-point flags, and loops become vectors only without them.
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            py_limited_api=True,
            # Without a C compiler everything works, and noise takes about nine times as long. A release must have them.
            optional=not os.environ.get("TACIT_REQUIRE_KERNELS"),
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
