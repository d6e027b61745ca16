"""Programs that nobody here wrote, in pinned versions: each is installed once, into a folder of its own.

Installations outlive a test run. Where nothing can be downloaded, tests that need one are skipped, except in CI.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import CACHE

BINARIES = {
    "@anthropic-ai/claude-code@2.1.330": "@anthropic-ai/claude-code-linux-*/claude",
    "@openai/codex@0.169.0": "@openai/codex-linux-*/vendor/*/bin/codex",
    "opencode-ai@1.18.33": "opencode-linux-*/bin/opencode",
}
"""Packages of npm, and where each has its program for this machine, which does not need Node."""

MINI_SWE_AGENT = ("mini-swe-agent==2.4.6", "litellm==1.106.2", "mcp==2.3.0")  # litellm imports mcp
SMOLAGENTS = ("smolagents[openai]==1.26.0", "openai==3.54.0")

_PYTEST = ("pytest==9.2.0", "pytest-asyncio==1.4.1", "pytest-xdist==3.8.0", "inline-snapshot==0.36.1")
OPENAI_SUITE = ("openai[aiohttp]==3.54.0", *_PYTEST)
ANTHROPIC_SUITE = ("anthropic[aiohttp]==2.12.0", "http-snapshot[httpx]==0.1.9", "dirty-equals==0.11", *_PYTEST)
"""Packages of PyPI: first the one whose program or tests are run."""

INSTALL_S = 300
"""Longest time of one download, in seconds."""


def binary(package: str) -> Path:
    """The program of a package of npm; see :data:`BINARIES`."""

    def install(folder: Path) -> None:
        _run("npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", package)

    folder = _once("npm", (package,), install)
    # Of two builds of opencode, the one without a suffix comes first.
    return sorted(folder.glob(f"node_modules/{BINARIES[package]}"))[0]


def programs_of(packages: Sequence[str]) -> Path:
    """The folder ``bin`` of a virtual environment with ``packages`` of PyPI."""

    def install(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
        _run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(folder / "bin/python"), *packages)

    return _once("pypi", packages, install) / "bin"


def sources_of(package: str) -> Path:
    """The unpacked source distribution of a package of PyPI, which has its tests."""
    name = package.partition("==")[0]

    def install(folder: Path) -> None:
        _run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name),
            *("--dest", str(folder), package),
        )
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        archive.unlink()

    (folder,) = _once("source", (package,), install).iterdir()
    return folder


def _once(kind: str, packages: Sequence[str], install: Callable[[Path], None]) -> Path:
    """The folder that ``install`` has filled: by an earlier run, or now."""
    name = packages[0].replace("/", "-").replace("==", "-").lstrip("@")
    digest = hashlib.sha256("\n".join((sys.version, *packages)).encode()).hexdigest()[:8]
    folder = CACHE / "clients" / f"{kind}-{name}-{digest}"
    whole = folder.with_name(f"{folder.name}.whole")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                install(folder)
            except (OSError, subprocess.SubprocessError) as error:
                if "CI" in os.environ:
                    raise
                pytest.skip(f"{packages[0]} cannot be installed here: {error}")
            whole.touch()
    return folder


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, timeout=INSTALL_S, stdout=subprocess.DEVNULL)
