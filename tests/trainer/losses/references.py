"""TRL and verl as published on the package index, for tests and benchmarks: installed once, into a cached folder.

Without their dependencies, which would change headrace's own environment.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import CACHE

REQUIREMENTS = Path(__file__).parent / "references.txt"


def references() -> Path:
    """The folder with the references, made where it is missing."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    folder = CACHE / f"reference-losses-{wanted}-{sys.version_info.major}{sys.version_info.minor}"
    if not folder.is_dir():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        assert uv, "uv is needed to install the reference losses: make install brings it"
        options = ["--quiet", "--no-deps", "--python", sys.executable, "--target", str(making)]
        subprocess.run([uv, "pip", "install", *options, "-r", str(REQUIREMENTS)], check=True, timeout=300)
        making.rename(folder)
    return folder
