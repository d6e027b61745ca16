"""What a rank does in ``test_ranks``: jobs of four, two and one rank, one after the other, and what came of each.

Four processes are started; a job of fewer takes the first of them. Rank 0 writes ``<job>.json``.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from headrace.trainer.batches.batch import Batch
from headrace.trainer.config import TrainerConfig
from headrace.trainer.coordination.follow import follow
from headrace.trainer.coordination.lead import Leader
from headrace.trainer.learning.divergence import TrainingDiverged
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.learning.plausibility import ImplausibleLogprobs, PlausibilitySettings
from headrace.trainer.losses.settings import CorrectionSettings, KlSettings
from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.lora import LoraSettings
from headrace.trainer.parallel.policy import ShardedPolicy
from headrace.trainer.parallel.ranks import ALONE, RankLost, Ranks, join_ranks
from headrace.trainer.parallel.settings import ParallelSettings
from tests.trainer.builders import UNCHECKED, off_policy_batch

STEPS = 4
VERSION = 3
LOST_S = 4.0

CASES: dict[str, dict[str, object]] = {
    "cispo in passes": {"max_tokens_per_pass": 12},
    "gradients kept whole": {"max_tokens_per_pass": 12, "parallel": ParallelSettings(reduce_every_pass=False)},
    "grpo in sub-steps": {"loss": "grpo", "substeps": 3, "max_tokens_per_pass": 12},
    "more ranks than trajectories": {"loss": "dr_grpo", "substeps": 8},
    "gspo": {"loss": "gspo", "max_tokens_per_pass": 12},
    "kimi": {"loss": "kimi"},
    "decoupled": {"loss": "decoupled", "max_tokens_per_pass": 12},
    "kl to the base": {"kl": KlSettings(0.1)},
    "activations computed again": {"layers": LayerSettings(activation_checkpointing=True), "max_tokens_per_pass": 12},
    "bfloat16": {"dtype": "bfloat16"},
    "adapters": {"lora": LoraSettings(rank=4)},
    "adapters on bfloat16": {
        "lora": LoraSettings(rank=4),
        "dtype": "bfloat16",
        "correction": CorrectionSettings(importance="truncate", ratio_max=0.05),  # at its bound almost everywhere
    },
    "muon": {"optimizer": OptimizerSettings(name="muon")},
}
"""Settings by the name of the case."""
IDLE = ("bfloat16", "adapters on bfloat16", "muon", "cispo in passes")
"""Cases that are also done with ranks that contribute no gradient: a comparison that does not see that sees nothing."""


def config_of(folder: Path, **settings: object) -> TrainerConfig:
    known = {"plausibility": UNCHECKED} | settings
    return TrainerConfig("localhost:1", "run", folder / "base", folder, "file:///nowhere", **known)


def batches() -> list[Batch]:
    return [off_policy_batch(seed=seed) for seed in range(STEPS)]


def at_work(
    folder: Path, ranks: Ranks, settings: dict[str, object], do: Callable[[Learner], None], begin: Path | None = None
) -> None:
    """Rank 0 does ``do`` with a learner that the others follow; it begins with the checkpoint ``begin``."""
    config = config_of(folder, **settings)
    if not ranks.leads:
        follow(config.learner, ranks)
        return
    leader = Leader(ranks)
    do(leader.open_learner(config.learner, begin))
    if ranks.count > 1:
        leader.dismiss()


def write(learner: Learner, folder: Path) -> None:
    learner.check_weights()
    learner.write_model(folder / "model")
    learner.write_optimizer(folder / "optimizer")


def job(folder: Path, ranks: Ranks, found: dict[str, object]) -> None:
    """Three steps of every case, the canaries after them, and all that is written."""
    for name, settings in CASES.items():

        def steps(learner: Learner, name: str = name) -> None:
            found[name] = [learner.step(batch, VERSION) for batch in batches()[:3]]
            found[f"{name}: canaries"] = [canary.logprobs.tolist() for canary in learner.canaries(7)]
            write(learner, folder / f"{name} on {ranks.count}")

        at_work(folder, ranks, settings, steps)


def disbelieving(folder: Path, ranks: Ranks, found: dict[str, object]) -> None:
    """A batch of which some records are not believed, by one update's own pass and ahead of several; then another."""
    for substeps in (1, 2):

        def steps(learner: Learner, substeps: int = substeps) -> None:
            batch = batches()[0]
            try:
                learner.step(batch, VERSION)
            except ImplausibleLogprobs as error:
                found[f"not believed, {substeps}"] = list(error.trajectories)
            certain = replace(batch, behaviour_logprobs=np.zeros_like(batch.behaviour_logprobs))
            found[f"believed, {substeps}"] = learner.step(certain, VERSION)["loss"]

        settings = {"plausibility": PlausibilitySettings(too_low=4.0, too_high=None), "substeps": substeps}
        at_work(folder, ranks, settings, steps)


def idly(folder: Path, ranks: Ranks, found: dict[str, object]) -> None:
    """The cases of ``IDLE`` again, with every rank but 0 giving zeros for its share of the gradient."""
    backward = ShardedPolicy.backward

    def nothing(self: ShardedPolicy, loss: torch.Tensor, *, last: bool) -> None:
        backward(self, loss if ranks.leads else loss * 0, last=last)

    for name in IDLE:

        def steps(learner: Learner, name: str = name) -> None:
            found[f"{name}, idle"] = [learner.step(batch, VERSION) for batch in batches()[:3]]
            write(learner, folder / f"{name} on {ranks.count}, idle")

        with mock.patch.object(ShardedPolicy, "backward", nothing):
            at_work(folder, ranks, CASES[name], steps)


def carried_on(folder: Path, ranks: Ranks, found: dict[str, object]) -> None:
    """Two steps on as many ranks as there are, for others to go on from; and on from what others wrote before."""

    def run(name: str, first: int, last: int, begin: Path | None) -> None:
        def steps(learner: Learner) -> None:
            found[name] = [learner.step(batch, VERSION) for batch in batches()[first:last]]
            write(learner, folder / name)

        at_work(folder, ranks, {"substeps": 2}, steps, begin)

    if not (folder / f"begun on {ranks.count}").is_dir():
        run(f"begun on {ranks.count}", 0, 2, None)
    if ranks.count == 1 and not (folder / "uninterrupted").is_dir():
        run("uninterrupted", 0, STEPS, None)
    for before in {4, 2, 1} - {ranks.count}:
        if (folder / f"begun on {before}").is_dir():
            run(f"from {before} to {ranks.count}", 2, STEPS, folder / f"begun on {before}")


def troubles(folder: Path, ranks: Ranks, found: dict[str, object]) -> None:
    """Steps that diverge, one of which nothing is kept, a disk that refuses one rank: all of them can go on.

    As the trainer's loop does, go back to the checkpoint after a step that diverged.
    """
    config = config_of(folder, correction=CorrectionSettings(max_token_staleness=3), substeps=2)
    if not ranks.leads:
        follow(config.learner, ranks)
        return
    leader, before, batch = Leader(ranks), folder / f"before trouble on {ranks.count}", batches()[0]
    learner = leader.open_learner(config.learner, None)
    write(learner, before)
    half_broken = replace(batch, behaviour_logprobs=np.where(batch.trajectories < 4, -1.0, np.nan).astype(np.float32))
    for name, bad, limit in (("nan", half_broken, np.inf), ("norm", batch, 1e-9)):
        try:
            learner.step(bad, VERSION, norm_limit=limit)
        except TrainingDiverged as error:
            found[name] = str(error)
        learner = leader.open_learner(config.learner, before)
    found["masked"] = learner.step(batch, 100)
    found["after"] = learner.step(batch, VERSION)
    if ranks.count > 1:
        taken = folder / f"taken {ranks.count}"
        (taken / "shard-00002-model-00001-of-00001.safetensors").mkdir(parents=True)  # rank 1's place
        try:
            learner.write_optimizer(taken)
        except OSError as error:
            found["disk"] = str(error)
        leader.dismiss()


def lost(folder: Path, rank: int) -> None:
    """Two jobs of two ranks, waiting for groups: in one the second ends, in the other it falls silent."""
    trouble = "ended" if rank < 2 else "silent"
    with joined(trouble, rank % 2, 2, folder, timeout_s=LOST_S) as ranks:
        if not ranks.leads:
            if trouble == "silent":
                time.sleep(10 * LOST_S)  # until the other has given it up and the test ends it
            os._exit(0)
        try:
            asyncio.run(lead_until_lost(ranks))
        except RankLost as error:
            (folder / f"{trouble}.txt").write_text(str(error))
        os._exit(0)


async def lead_until_lost(ranks: Ranks) -> None:
    async with Leader(ranks).heartbeats():
        await asyncio.sleep(600)  # waiting for groups


def joined(job: str, rank: int, count: int, folder: Path, timeout_s: float = 300.0) -> AbstractContextManager[Ranks]:
    """The job of that name, whose ranks meet at a file."""
    if count == 1:
        return nullcontext(ALONE)
    return join_ranks("cpu", timeout_s=timeout_s, meet=f"file://{folder}/{job}.meet", rank=rank, count=count)


def main(name: str, rank: int) -> None:
    folder = Path(name)
    sys.stdout = sys.stderr = (folder / f"{rank}.log").open("w", buffering=1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    for round_, count in enumerate((1, 4, 2, 1)):
        if rank >= count:
            continue
        found: dict[str, object] = {}
        with joined(str(round_), rank, count, folder) as ranks:
            if round_ < 3:
                job(folder, ranks, found)
                troubles(folder, ranks, found)
                disbelieving(folder, ranks, found)
                if count > 1:
                    idly(folder, ranks, found)
            carried_on(folder, ranks, found)
        if rank == 0:
            (folder / f"{round_}.json").write_text(json.dumps(found))
    lost(folder, rank)
