"""LiteLLM with the logger and a scripted endpoint, in a process of its own: it needs another version of OpenAI's
client."""

import os
import subprocess
import sys
from pathlib import Path

from tests.beside import installed

HERE = Path(__file__).parent


def test_litellm() -> None:
    path = os.pathsep.join([str(installed(HERE / "litellm.txt")), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / "calls_of_litellm.py")]
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
