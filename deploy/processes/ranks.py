"""This process among the ranks of a job that ``torchrun`` started; without it, a job of one.

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
    """Whether this process is rank 0, or alone: the one that speaks to the log and to people."""
    return os.environ.get("RANK", "0") == "0"


def name_of_rank(name: str) -> str:
    """What this process is called: ``name``, or on any rank but 0 ``<name>-<rank>``."""
    return name if leads() else f"{name}-{os.environ['RANK']}"


@contextmanager
def job_ranks(config: "TrainerConfig") -> Iterator["Ranks"]:
    """The ranks of this process's job, which it leaves at the end.

    Raises ``RankLost`` where the others do not come within ``config.parallel.timeout_s``.
    """
    from headrace.trainer.parallel.ranks import ALONE, join_ranks

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    with join_ranks(config.device, local_rank=local_rank, timeout_s=config.parallel.timeout_s) as ranks:
        yield ranks
