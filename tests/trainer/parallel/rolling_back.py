"""The ranks of ``test_rollback``: ``torchrun -m tests.trainer.parallel.rolling_back KAFKA FOLDER``.

Both ranks train runs in sequence from the log, in the same process. In the run ``muon-spoiled`` weights of rank 1
become NaN, once, after the last update that makes version 2, as by a memory error.
"""

import asyncio
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.divergence import DivergenceSettings
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.losses.settings import CorrectionSettings
from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.lora import LoraSettings
from headrace.trainer.model.shards import local_shard
from headrace.trainer.parallel.ranks import join_ranks
from tests.trainer.running import train_until, trainer_config

STEPS = 3
SUBSTEPS = 2

MUON: dict[str, object] = {
    "optimizer": OptimizerSettings(name="muon"),
    "layers": LayerSettings(activation_checkpointing=True),
    "max_tokens_per_pass": 24,
}
ADAPTERS: dict[str, object] = {
    "lora": LoraSettings(rank=4),
    "dtype": "bfloat16",
    "correction": CorrectionSettings(importance="truncate", ratio_max=0.05),  # at its bound almost everywhere
}
RUNS = {
    "muon-calm": MUON,
    "muon-planted": MUON,
    "muon-spoiled": MUON,
    "adapters-calm": ADAPTERS,
    "adapters-planted": ADAPTERS,
}
"""Settings by the name of the run."""


def config_of(kafka: str, run: str, folder: Path, settings: dict[str, object]) -> TrainerConfig:
    divergence = DivergenceSettings(max_norm_ratio=20, norm_history=2)
    return trainer_config(
        kafka, run, folder / "base", folder, groups_per_step=1, substeps=SUBSTEPS, divergence=divergence, **settings
    )


def spoil_once() -> None:
    """Make some of this rank's weights NaN in the next run."""
    updates = 0

    def spoil(optimizer: torch.optim.Optimizer, *_: object) -> None:
        nonlocal updates
        if isinstance(optimizer, torch.optim.Muon):  # an AdamW is stepped too
            updates += 1
            if updates == 2 * SUBSTEPS:
                local_shard(optimizer.param_groups[0]["params"][-1].detach()).fill_(torch.nan)
                hook.remove()

    hook = register_optimizer_step_post_hook(spoil)


def main() -> None:
    kafka, folder = sys.argv[1], Path(sys.argv[2])
    with join_ranks("cpu") as ranks:
        for run, settings in RUNS.items():
            if run == "muon-spoiled" and not ranks.leads:
                spoil_once()
            asyncio.run(train_until(config_of(kafka, run, folder, settings), STEPS, ranks=ranks))


if __name__ == "__main__":
    main()
