"""The tests of OpenAI's client once more, with version 2 of it, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.beside import installed

HERE = Path(__file__).parent


def test_version_2_of_the_client() -> None:
    path = os.pathsep.join([str(installed(HERE / "openai-2.txt")), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OPENAI_EXPECTED": "2."}
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / "test_openai.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=HERE.parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
