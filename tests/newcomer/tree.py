"""A copy of the tree, in which a newcomer's change is tried."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("schemas", "streams", "agents", "deploy", "trainer", "src")


def copy_tree(target: Path) -> Path:
    """Copy what is installed to ``target``, the extension module included."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "pictures", "static", "*.safetensors")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, target / folder, symlinks=True, ignore=ignore)
    return target


def environment(tree: Path) -> dict[str, str]:
    """Environment variables with which Python imports headrace from ``tree``."""
    paths = os.pathsep.join([str(tree / "src"), str(ROOT)])
    return os.environ | {"PYTHONPATH": paths, "MYPYPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"}


def run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``command`` in ``tree``."""
    return subprocess.run([sys.executable, *command], cwd=tree, env=environment(tree), capture_output=True, text=True)
