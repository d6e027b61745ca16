"""Instances of a trainer in sequence, each killed at a given effect: ``python -m tests.trainer.killed`` (see the test).

    … trained:3              SIGKILL once version 3 is trained, in memory
    … position_written:5:2   the second time that a position of making version 5 was written
    … updated:1              after the first of the step's two sub-steps
    … done:6                 runs until version 6 is announced

Each instance is a process of its own, forked because importing torch takes longer than everything else here.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

from headrace.trainer.loop import run_trainer
from headrace.trainer.losses.registry import loss_named  # noqa: F401  imported before the fork
from headrace.trainer.model.load import load_model  # noqa: F401
from tests.trainer.running import trainer_config

ENDS_WITHIN_S = 300


def live(death: str, config) -> None:
    """Run one instance; returns if it is not killed."""
    moment, version, *which = death.split(":")
    stop, seen = asyncio.Event(), Counter()

    def reached(effect, making):
        seen[effect, making] += 1
        if (moment, int(version)) == ("done", making) and effect == "announced":
            loop.call_soon_threadsafe(stop.set)
        if (effect, making) == (moment, int(version)) and seen[effect, making] == int(which[0] if which else 1):
            os.kill(os.getpid(), signal.SIGKILL)
        seen["making"] = making

    def updated(*_) -> None:
        if (moment, int(version)) == ("updated", seen["making"]):
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(updated)

    async def run() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(run_trainer(config, stop=stop, ready=lambda: None, reached=reached), ENDS_WITHIN_S)

    loop: asyncio.AbstractEventLoop
    asyncio.run(run())


def main() -> None:
    kafka, run, base, folder, settings, *deaths = sys.argv[1:]
    config = trainer_config(kafka, run, Path(base), Path(folder), **json.loads(settings))
    for death in deaths:
        child = os.fork()
        if not child:
            live(death, config)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(death, ended, flush=True)
        if ended not in (0, -signal.SIGKILL):
            return


if __name__ == "__main__":
    main()
