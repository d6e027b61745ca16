"""Runs the trainer in tests, with small settings, until a given effect."""

import asyncio

from headrace.trainer.config import TrainerConfig
from headrace.trainer.loop import run_trainer
from headrace.trainer.parallel.ranks import ALONE
from headrace.trainer.step_effects import ignore_effect
from tests.trainer.builders import UNCHECKED


def trainer_config(kafka, run, base, folder, **settings):
    """Small steps, checkpoints and objects under ``folder``."""
    known = {"groups_per_step": 2, "max_staleness": 100, "threads": 1, "plausibility": UNCHECKED}
    known |= {"store_url": f"file://{folder}/objects"}
    return TrainerConfig(**{"bootstrap": kafka, "run": run, "model_dir": base} | {
        "checkpoint_dir": folder / run} | known | settings)  # fmt: skip


async def train_until(config, version, *, effect="announced", ranks=ALONE, reached=ignore_effect):
    """Run the trainer until ``effect`` of making ``version``; of several ``ranks`` each calls it.

    ``reached`` is called with all effects, too.
    """
    stop = asyncio.Event()

    def noted(at, what):
        if (at, what) == (effect, version):
            stop.set()
        reached(at, what)

    served = asyncio.Event()
    await asyncio.wait_for(run_trainer(config, stop=stop, ready=served.set, reached=noted, ranks=ranks), 120)
    assert served.is_set()


def payloads(found):
    """Returns the records without their ids."""
    return [payload for _, payload in found]
