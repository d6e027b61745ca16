"""The ranks of ``test_cut_off``: ``torchrun -m tests.trainer.parallel.cut_off KAFKA PID FOLDER``.

Both ranks train runs in sequence from the log. While version 2 of ``away`` is announced, rank 0 freezes the broker,
whose process is ``PID``, and reports it.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from headrace.trainer.config import TrainerConfig
from headrace.trainer.parallel.ranks import join_ranks
from headrace.trainer.retries.retry import OutageSettings
from headrace.trainer.step_effects import Effect
from tests.trainer.running import train_until, trainer_config

RUNS = ("calm", "away")
STEPS = 3
TIMEOUT_S = 15.0
"""Timeout of ranks, in seconds."""
OUTAGES = OutageSettings(first_wait_s=0.1, longest_wait_s=0.5, alert_after_s=1.0, answer_s=2.0)
FROZEN = "the broker is frozen"


def config_of(kafka: str, run: str, folder: Path) -> TrainerConfig:
    return trainer_config(kafka, run, folder / "base", folder, groups_per_step=1, outages=OUTAGES)


def main() -> None:
    kafka, pid, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    due = {("away", Effect.SENT, 2)}

    def reached(run: str, effect: Effect, making: int) -> None:
        if (run, effect, making) in due:
            due.clear()
            os.kill(pid, signal.SIGSTOP)
            print(FROZEN, flush=True)

    with join_ranks("cpu", timeout_s=TIMEOUT_S) as ranks:
        for run in RUNS:
            config = config_of(kafka, run, folder)
            asyncio.run(train_until(config, STEPS, ranks=ranks, reached=lambda *what, run=run: reached(run, *what)))


if __name__ == "__main__":
    main()
