"""A rebuilt batch on disk, for inspection: its arrays as safetensors, and a description of them as JSON.

step-12.safetensors   token_ids (T), position_ids (T), cu_seqlens (S + 1), targets (N), behaviour_logprobs (N),
                      advantages (N), versions (N), trajectories (N), temperatures (N), rewards (M)
step-12.json          the step, and each of the M trajectories: id, group, place, labels, reward, advantage, tokens
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from headrace.trainer.batches.batch import Batch
from headrace.trainer.provenance.rebuild import Rebuilt


def write_batch(rebuilt: Rebuilt, path: Path) -> Path:
    """Write the batch to ``path`` and its description next to it, each atomically; returns the description's path.

    Raises ``ValueError`` if there is no batch, or if ``path`` does not end in ``.safetensors``.
    """
    if rebuilt.batch is None:
        raise ValueError(f"step {rebuilt.step.step} could not be rebuilt: there is nothing to write")
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} must end in .safetensors")
    batch, step = rebuilt.batch, rebuilt.step
    arrays = batch.arrays() | {"position_ids": batch.packed.position_ids, "rewards": batch.rewards}
    named = {"run": step.run, "step": str(step.step), "sha256": rebuilt.sha256 or "", "verdict": rebuilt.verdict}
    beside = path.with_suffix(".json")
    fresh = path.with_name(f"{path.name}.new")
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, fresh, metadata=named)
    os.replace(fresh, path)  # created by the library with mode 0600
    fresh.write_text(json.dumps(description(rebuilt, batch), indent=1, ensure_ascii=False) + "\n")
    path.chmod(fresh.stat().st_mode)
    os.replace(fresh, beside)
    return beside


def description(rebuilt: Rebuilt, batch: Batch) -> dict[str, Any]:
    """Returns the description of the arrays, as JSON values."""
    step, recipe = rebuilt.step, rebuilt.step.recipe or rebuilt.assumed
    return {
        "run": step.run,
        "step": step.step,
        "version": step.version,
        "verdict": rebuilt.verdict.value,
        "data_sha256": step.data_sha256,
        "rebuilt_sha256": rebuilt.sha256,
        "recipe": recipe and recipe.model_dump(),
        "axes": {"T": len(batch.packed.token_ids), "S": len(batch.packed.lengths), "N": len(batch.packed.targets)},
        "metrics": step.metrics,
        "trajectories": _trajectories(rebuilt, batch),
    }


def _trajectories(rebuilt: Rebuilt, batch: Batch) -> list[dict[str, Any]]:
    """Returns each trajectory in the batch's order; ``index`` is its number in the array ``trajectories``."""
    tokens = Counter(batch.trajectories.tolist())
    members = [(group, resolved) for group in rebuilt.groups for resolved in group.members]
    described = []
    for index, (group, resolved) in enumerate(members):
        member, started = resolved.member, resolved.trajectory.started
        described.append(
            {
                "index": index,
                "trajectory_id": member.trajectory_id,
                "place": [member.trajectory.partition, member.trajectory.offset],
                "group_id": group.group_id,
                "group_place": [group.reference.partition, group.reference.offset],
                "task_id": started and started.task_id,
                "agent": started and started.agent,
                "tenant": started and started.tenant,
                "reward": member.reward,
                "advantage": member.advantage,
                "sampled_tokens": tokens[index],
                "versions": resolved.trajectory.versions,
            }
        )
    return described
