"""Starts gateways within a second: a process that has imported vLLM's parsers, which takes many, forks them.

    python -m tests.agents.gateway.clients.launcher MODEL_DIR
    {"env": {"HEADRACE_DATA": …}, "options": ["tool_parser=hermes", …], "log": "…/gateway.log"}   →   its process id

One line each way. Each gateway is a process that can be killed, and runs what ``headrace worker gateway`` runs. All of
them end with the launcher, which ends when its input does.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    from headrace.agents.gateway import gateway  # noqa: F401 - imported before the fork
    from headrace.agents.gateway.answer_parsers import AnswerParsers, ParserSettings
    from headrace.deploy.cli import cli

    AnswerParsers(ParserSettings(sys.argv[1], tool_parser="hermes", reasoning_parser="qwen3"))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended gateways do not stay as zombies
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if child := os.fork():
            print(child, flush=True)
        else:
            _become(asked)
            options = (part for each in asked["options"] for part in ("--set", f"gateway.{each}"))
            cli(["worker", "gateway", *options], prog_name="headrace")


def _become(asked: dict[str, Any]) -> None:
    """Have what a process of its own has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.environ.update(asked["env"])


if __name__ == "__main__":
    main()
