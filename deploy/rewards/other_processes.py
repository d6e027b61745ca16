"""Scores a reward in other processes, to detect that it depends on the order of a set or on what ran before.

Python orders a set of strings by a hash with a different seed in every process. A sum over such a set can differ in its
last digits, and the "first" element can be a different one; a replay on another machine would give another reward.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.deploy.errors import StackError
from headrace.streams.rewards.finding import Finding, Problem, Sample
from headrace.streams.rewards.incomplete import hiding_defect
from headrace.streams.rewards.spec import RewardSpec

HASH_SEEDS = ("1", "2")
"""PYTHONHASHSEED of the two processes."""

TIMEOUT_S = 300.0
"""Time limit of a process, in seconds."""


def score_lines(spec: RewardSpec, samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    """Yield the scores of ``samples`` by ``spec``, as ``headrace reward score`` prints them. Calls no judges."""
    for sample in samples:
        trajectory, hidden = sample.trajectory, hiding_defect(sample.trajectory)
        scored = None if hidden else spec.score(trajectory, sample.feedback)
        yield {
            "trajectory_id": trajectory.trajectory_id,
            "task_id": trajectory.started.task_id if trajectory.started else None,
            "spec": spec.label,
            "total": scored.total if scored else None,
            "unscored": scored.unscored if scored else hidden,
            "components": {
                name: {"value": component.value, "weight": component.weight}
                for name, component in (scored.components if scored else {}).items()
            },
        }


def differences_elsewhere(text: str, samples: Sequence[Sample], known: Sequence[Finding]) -> list[Finding]:
    """Returns findings for the components of the spec ``text`` that two fresh processes score differently.

    Components with ``known`` findings are left out: one that reads the clock differs everywhere. Raises
    :class:`StackError` if a process fails.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-reward-") as folder:
        file = Path(folder) / "trajectories.jsonl"
        file.write_text("".join(f"{sample.trajectory.model_dump_json()}\n" for sample in samples))
        one, other = _scored_in_processes(text, file)
    named = {finding.component for finding in known if finding.wrong}
    found: dict[str, Finding] = {}
    for left, right in zip(one, other, strict=True):
        for name in left["components"].keys() | right["components"].keys():
            values = [_value(line, name) for line in (left, right)]
            if values[0] != values[1] and name not in named and name not in found:
                found[name] = Finding(
                    Problem.NOT_DETERMINISTIC,
                    name,
                    f"gave {values[0]}, and {values[1]} in another process",
                    left["trajectory_id"],
                    "Sort sets before iterating over them: their order differs between processes.",
                )
    return [found[name] for name in sorted(found)]


def _scored_in_processes(text: str, file: Path) -> list[list[Mapping[str, Any]]]:
    argv = [sys.executable, "-m", "headrace.deploy.cli", "reward", "score", text, str(file)]
    children = [
        subprocess.Popen(
            argv, env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for seed in HASH_SEEDS
    ]
    outputs = []
    try:
        for child in children:
            out, err = child.communicate(timeout=TIMEOUT_S)
            if child.returncode:
                raise StackError(f"Scoring in another process failed: {err.strip()[-500:]}")
            outputs.append([json.loads(line) for line in out.splitlines()])
    except subprocess.TimeoutExpired as error:
        raise StackError(f"Scoring in another process took more than {TIMEOUT_S:g} s.") from error
    finally:
        for child in children:
            child.kill()
            child.wait()
    return outputs


def _value(line: Mapping[str, Any], name: str) -> float | None:
    component = line["components"].get(name)
    return component["value"] if component else None
