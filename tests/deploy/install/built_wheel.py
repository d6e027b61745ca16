"""Builds headrace's wheel from a copy of the tree, with a compiler of the test's choice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy.kafka.programs import program

ROOT = Path(__file__).parents[3]
LAYERS = ("agents", "deploy", "schemas", "streams", "trainer")
NETWORK = ("_PROXY", "_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT")
"""Ends of the names of variables that a machine's network needs."""


def copy_of_the_tree(folder: Path) -> Path:
    """Copy what a wheel is built from, without anything that an earlier build left in the tree."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    for name in (*LAYERS, "src"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def build_wheel(tree: Path, folder: Path, *, compiler: bool) -> Path:
    """The wheel, built in ``folder`` with an empty PATH. ``compiler``: with a program that compiles to empty files."""
    compiles = folder / "compiler"
    program(compiles, "c++", 'while [ "$1" != -o ]; do shift; done; : > "$2"')
    variables = {"CC": str(compiles / "c++"), "CXX": str(compiles / "c++")} if compiler else {}
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", str(folder)]
    subprocess.run([*argv, str(tree)], env=bare(folder) | variables, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


def bare(home: Path, *path: Path) -> dict[str, str]:
    """The environment of a user with nothing but ``path`` on the PATH and a home folder of their own."""
    kept = {name: value for name, value in os.environ.items() if name.upper().endswith(NETWORK)}
    search = os.pathsep.join(map(str, path)) or str(home / "empty")
    return kept | {"HOME": str(home), "PATH": search, "LANG": "C.UTF-8"}
