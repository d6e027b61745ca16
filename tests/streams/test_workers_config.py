"""The settings of workers are read without the libraries that only a running worker needs."""

import subprocess
import sys

PROGRAM = """
import sys
import headrace.deploy.commands.replay, headrace.streams.replay.run, headrace.streams.workers_config
print(sorted({"faust", "aiohttp"} & sys.modules.keys()))
"""


def test_a_replay_imports_neither_faust_nor_an_http_client() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout == "[]\n"
