"""Packages that tests and benchmarks use in addition to headrace's own environment: installed once, in a cached folder.

Without their dependencies, which would change what headrace is tested with: a requirements file names all it needs.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import CACHE


def installed(requirements: Path) -> Path:
    """The folder with the packages of ``requirements``, created if missing; for the end of a module path."""
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    folder = CACHE / f"{requirements.stem}-{wanted}-{sys.version_info.major}{sys.version_info.minor}"
    if not folder.is_dir():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        assert uv, f"uv is needed to install {requirements.name}: make install brings it"
        options = ["--quiet", "--no-deps", "--python", sys.executable, "--target", str(making)]
        subprocess.run([uv, "pip", "install", *options, "-r", str(requirements)], check=True, timeout=300)
        making.rename(folder)
    return folder


def assert_tests_pass(file: Path, requirements: Path, **variables: str) -> None:
    """Run the tests of ``file`` with the packages of ``requirements`` in front of headrace's own, in a process of their
    own with these environment variables, and assert that they pass."""
    path = os.pathsep.join([str(installed(requirements)), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
