"""Builds the extension modules, and records the hash of its sources in each.

Without a C++ compiler the installation continues without them. Everything works then, at a fraction of the speed.
"""

import hashlib
from pathlib import Path

from setuptools import Extension, setup

SHARED = Path("schemas/native")


def module(name: str, folder: Path) -> Extension:
    """The module ``name`` of all sources in ``folder``."""
    sources = sorted(folder.rglob("*.?pp"))
    read = [*sources, *sorted(SHARED.rglob("*.?pp"))]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in read)).hexdigest()
    return Extension(
        name,
        [str(source) for source in sources if source.suffix == ".cpp"],
        include_dirs=[str(folder), str(SHARED)],
        depends=[str(source) for source in read],
        define_macros=[("HEADRACE_SOURCES", f'"{digest}"')],
        extra_compile_args=["-std=c++20", "-O3", "-fvisibility=hidden"],
        language="c++",
        optional=True,
    )


setup(
    ext_modules=[
        module("headrace.streams.native.speedups", Path("streams/native")),
        module("headrace.agents.gateway.native.speedups", Path("agents/gateway/native")),
    ]
)
