"""The current process as a rank of a job that ``torchrun`` started; without ``torchrun``, a job of one rank.

torchrun --nproc-per-node 2 -m headrace.deploy.cli train --config run.toml
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.trainer.config import TrainerConfig
    from headrace.trainer.parallel.ranks import Ranks


def leads() -> bool:
    """Whether this process is rank 0 or the only rank: the rank that uses Kafka and shows progress."""
    return os.environ.get("RANK", "0") == "0"


def name_of_rank(name: str) -> str:
    """Returns the name of this process: ``name`` on rank 0, otherwise ``<name>-<rank>``."""
    return name if leads() else f"{name}-{os.environ['RANK']}"


@contextmanager
def job_ranks(config: "TrainerConfig") -> Iterator["Ranks"]:
    """Join the ranks of this process's job; leaves the job at the end of the block.

    Raises ``RankLost`` if the other ranks do not join within ``config.parallel.timeout_s``.
    """
    from headrace.trainer.parallel.ranks import ALONE, join_ranks

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    with join_ranks(config.device, local_rank=local_rank, timeout_s=config.parallel.timeout_s) as ranks:
        yield ranks
