"""Builds the extension module, and records the hash of its sources in it.

Without a C++ compiler the installation continues without the module, and the assembler works without it, at a fraction
of its speed.
"""

import hashlib
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("streams/native")
SOURCES = sorted(FOLDER.rglob("*.?pp"))
DIGEST = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()

setup(
    ext_modules=[
        Extension(
            "headrace.streams.native.speedups",
            [str(source) for source in SOURCES if source.suffix == ".cpp"],
            include_dirs=[str(FOLDER)],
            depends=[str(source) for source in SOURCES],
            define_macros=[("HEADRACE_SOURCES", f'"{DIGEST}"')],
            extra_compile_args=["-std=c++20", "-O3", "-fvisibility=hidden"],
            language="c++",
            optional=True,
        )
    ]
)
