"""The ranks of ``test_ranks``: jobs of four, two and one rank in sequence, and their results.

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
from headrace.trainer.losses.settings import CorrectionSettings, HintSettings, KlSettings
from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.lora import LoraSettings
from headrace.trainer.parallel.policy import ShardedPolicy
from headrace.trainer.parallel.ranks import ALONE, RankLost, Ranks, join_ranks
from headrace.trainer.parallel.settings import ParallelSettings
from tests.trainer.builders import UNCHECKED, off_policy_batch, with_hints

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
    "hints in passes": {"hints": HintSettings(weight=2.0), "max_tokens_per_pass": 24},
    "hints, gradients kept whole": {
        "hints": HintSettings(weight=2.0, direction="reverse", temperature=0.7),
        "substeps": 2,
        "parallel": ParallelSettings(reduce_every_pass=False),
    },
}
"""Settings by the name of the case."""
IDLE = ("bfloat16", "adapters on bfloat16", "muon", "cispo in passes")
"""Cases that also run with ranks without gradients: a comparison that does not detect that is worthless."""


def config_of(folder: Path, **settings: object) -> TrainerConfig:
    known = {"plausibility": UNCHECKED} | settings
    return TrainerConfig("localhost:1", "run", folder / "base", folder, "file:///nowhere", **known)


def batches() -> list[Batch]:
    return [with_hints(off_policy_batch(seed=seed)) for seed in range(STEPS)]


def run_job_steps(
    folder: Path, ranks: Ranks, settings: dict[str, object], do: Callable[[Learner], None], begin: Path | None = None
) -> None:
    """Call ``do`` on rank 0 with a learner that the others follow, from the checkpoint ``begin``."""
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
    """Run three steps of every case, then compute canaries and write model and optimiser."""
    for name, settings in CASES.items():

        def steps(learner: Learner, name: str = name) -> None:
            found[name] = [learner.step(batch, VERSION) for batch in batches()[:3]]
            found[f"{name}: canaries"] = [canary.logprobs.tolist() for canary in learner.canaries(7)]
            write(learner, folder / f"{name} on {ranks.count}")

        run_job_steps(folder, ranks, settings, steps)


def reject_records(folder: Path, ranks: Ranks, found: dict[str, object]) -> None:
    """Run a batch with implausible records, with one update and with several; then another batch."""
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
        run_job_steps(folder, ranks, settings, steps)


def without_gradients(folder: Path, ranks: Ranks, found: dict[str, object]) -> None:
    """Run the cases of ``IDLE`` again, with zeros as the gradients of every rank but 0."""
    backward = ShardedPolicy.backward

    def nothing(self: ShardedPolicy, loss: torch.Tensor, *, last: bool) -> None:
        backward(self, loss if ranks.leads else loss * 0, last=last)

    for name in IDLE:

        def steps(learner: Learner, name: str = name) -> None:
            found[f"{name}, idle"] = [learner.step(batch, VERSION) for batch in batches()[:3]]
            write(learner, folder / f"{name} on {ranks.count}, idle")

        with mock.patch.object(ShardedPolicy, "backward", nothing):
            run_job_steps(folder, ranks, CASES[name], steps)


def resume_jobs(folder: Path, ranks: Ranks, found: dict[str, object]) -> None:
    """Run two steps on all ranks, as a checkpoint for other jobs; and resume from checkpoints of other jobs."""

    def run(name: str, first: int, last: int, begin: Path | None) -> None:
        def steps(learner: Learner) -> None:
            found[name] = [learner.step(batch, VERSION) for batch in batches()[first:last]]
            write(learner, folder / name)

        run_job_steps(folder, ranks, {"substeps": 2}, steps, begin)

    if not (folder / f"begun on {ranks.count}").is_dir():
        run(f"begun on {ranks.count}", 0, 2, None)
    if ranks.count == 1 and not (folder / "uninterrupted").is_dir():
        run("uninterrupted", 0, STEPS, None)
    for before in {4, 2, 1} - {ranks.count}:
        if (folder / f"begun on {before}").is_dir():
            run(f"from {before} to {ranks.count}", 2, STEPS, folder / f"begun on {before}")


def diverge(folder: Path, ranks: Ranks, found: dict[str, object]) -> None:
    """Run steps that diverge, a completely masked one, and a write error on one rank: all ranks continue.

    Returns to the checkpoint after a diverged step, like the trainer's loop.
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


def lose_ranks(folder: Path, rank: int) -> None:
    """Run two jobs of two ranks that wait for groups: in one the second rank ends, in the other it hangs."""
    trouble = "ended" if rank < 2 else "silent"
    with joined(trouble, rank % 2, 2, folder, timeout_s=LOST_S) as ranks:
        if not ranks.leads:
            if trouble == "silent":
                time.sleep(10 * LOST_S)  # until the other raises and the test ends this one
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
    """Joins the job of that name, whose rendezvous is a file."""
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
                diverge(folder, ranks, found)
                reject_records(folder, ranks, found)
                if count > 1:
                    without_gradients(folder, ranks, found)
            resume_jobs(folder, ranks, found)
        if rank == 0:
            (folder / f"{round_}.json").write_text(json.dumps(found))
    lose_ranks(folder, rank)
