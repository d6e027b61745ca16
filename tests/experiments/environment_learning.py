"""An environment of verifiers trains a policy: rollouts through the gateway, with Kafka, vLLM and the trainer.

python -m tests.experiments.environment_learning --python envs/bin/python [--seed 0] [--steps 16] [--json FILE]

The taskset is ``tests/agents/environments/tasksets/first_query.py``, the model that of ``headrace demo``. The Python
has verifiers 0.4.0 installed; how is in ``agents/environments/README.md``.
"""

import asyncio
import json
import os
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from headrace.agents.backpressure import Backpressure
from headrace.agents.environments.rollouts import AlwaysRoom, RolloutsConfig, Room, Tally, run_environment
from headrace.agents.environments.sessions import gateway_sessions
from headrace.agents.environments.verifiers_process import VerifiersConfig, verifiers_environment
from headrace.agents.search.tasks import Split, make_task, task_id
from headrace.deploy.configuration.settings import Settings
from headrace.deploy.demo.circle import DemoPlan
from headrace.deploy.demo.exactness import Exactness, measure_exactness
from headrace.deploy.demo.run import demo_settings, fresh_folder
from headrace.deploy.demo.system import Options, merged
from headrace.deploy.demo.usage import read_counters, usage_lines, used
from headrace.deploy.demo.watch import RunWatcher, watch_run
from headrace.deploy.stack.foreground import print_change
from headrace.deploy.stack.stack import Stack, running_stack
from headrace.schemas.events import Purpose
from headrace.streams.ledger.ledger import read_ledger

TASKSETS = Path(__file__).parents[1] / "agents" / "environments" / "tasksets"
TASKSET = "first_query"
IN_PROCESS = {"harness": {"id": "in_process"}, "runtime": {"type": "subprocess"}}
"""A player whose calls of the model start no process."""
FIRST_TRAINING_TASK = 1_000_000
"""The base model has imitated attempts at tasks with smaller numbers."""
TASKS_PER_SEED = 1_000_000
HELD_OUT = 128
"""Held-out tasks of an evaluation."""
STEP_S = 180.0
"""Longest wait for version 0, and for a step on average, in seconds."""
SETTLE_S = 60.0
"""Longest wait for the stream processors after the last rollout, in seconds."""
OPEN_GROUPS = 64
"""Largest number of open groups, whatever the trainer's budget."""
SPARE = 5
"""Training tasks for each group that is trained: groups without a gradient are replaced."""
BUDGET = 120
"""Tokens of context that the model's prompts name, as in the demo."""
SHOWN = 128
"""Rollouts over which the printed means of the reward are taken."""


def row(identifier: str) -> dict[str, Any]:
    """Return the environment's task: the prompt as the model knows it from the demo, and the words a query needs."""
    task = make_task(identifier)
    asked, first = " ".join(task.question), task.chain[0].triple
    tokens = len(task.question) + 1  # and the marker before the message
    prompt = f"{asked} [Token usage: {' '.join(str(tokens))} / {' '.join(str(BUDGET))} ]"
    return {"name": identifier, "prompt": prompt, "wanted": [first.subject, first.relation]}


def write_tasks(file: Path, split: Split, first: int, count: int) -> Path:
    """Write tasks as JSON lines; returns the file."""
    file.write_text("".join(json.dumps(row(task_id(split, first + number))) + "\n" for number in range(count)))
    return file


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks of an environment of verifiers."""

    environment: Mapping[str, Any]
    """verifiers' ``EnvConfig`` as JSON."""
    select: Mapping[str, Any] = field(default_factory=dict)
    """verifiers' ``SelectConfig`` as JSON."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment's process."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is learnt."""

    training: TaskSet
    """More tasks than are trained, see :func:`training_tasks`."""
    held_out: TaskSet
    """``HELD_OUT`` tasks."""
    reply_tokens: int = 16
    """Longest reply of the model, in tokens."""
    options: Options = field(default_factory=dict)
    """Further options of the stack's parts."""
    model: Path | None = None
    """Folder of the base model; ``None``: the demo's."""


def training_tasks(plan: DemoPlan) -> int:
    """Return the number of training tasks that a run may need."""
    return (plan.steps + plan.max_staleness) * SPARE * plan.groups_per_step


def first_query(plan: DemoPlan, folder: Path) -> Lesson:
    """Write the tasks of the demo's model into ``folder``."""

    def tasks(name: str, split: Split, first: int, count: int) -> TaskSet:
        file = write_tasks(folder / name, split, first, count)
        return TaskSet({"taskset": {"id": TASKSET, "file": str(file)}, "agent": IN_PROCESS})

    first = FIRST_TRAINING_TASK + plan.seed * TASKS_PER_SEED
    return Lesson(
        training=tasks("training.jsonl", Split.TRAIN, first, training_tasks(plan)),
        held_out=tasks("held-out.jsonl", Split.HELD_OUT, 0, HELD_OUT),
    )


async def rolled_out(
    stack: Stack, python: str, tasks: TaskSet, config: RolloutsConfig, room: Room, stop: asyncio.Event
) -> Tally:
    """Run tasks until they end, or ``stop``; returns the counts."""
    gateway = stack.addresses["gateway"]
    environment = VerifiersConfig(
        python=python,
        environment=tasks.environment,
        select=tasks.select,
        gateway=gateway,
        log=stack.settings.logs / "environment.log",
        path=TASKSETS,
        sampling=config.sampling,
    )
    async with gateway_sessions(gateway) as sessions:
        with patch.dict(os.environ, tasks.variables):
            async with verifiers_environment(environment) as serving:
                return await run_environment(config, serving, sessions, room, stop=stop)


async def evaluated(stack: Stack, python: str, lesson: Lesson, temperature: float) -> float:
    """Return the mean reward on held-out tasks, one rollout of each.

    Raises ``RuntimeError`` if a rollout has no reward.
    """
    sampling = {"temperature": temperature, "max_tokens": lesson.reply_tokens}
    config = RolloutsConfig(group_size=1, purpose=Purpose.EVALUATE, sampling=sampling)
    tally = await rolled_out(stack, python, lesson.held_out, config, AlwaysRoom(), asyncio.Event())
    if len(tally.outcomes) != HELD_OUT:
        raise RuntimeError(f"of {HELD_OUT} held-out tasks {len(tally.outcomes)} have a reward: {tally}")
    return fmean(tally.outcomes)


async def trained(stack: Stack, python: str, lesson: Lesson, plan: DemoPlan, watch: RunWatcher) -> Tally:
    """Roll out training tasks until the last version is served; returns the counts.

    Raises ``RuntimeError`` if the tasks end before, ``StackError`` if a version takes too long.
    """
    stop = asyncio.Event()
    config = RolloutsConfig(
        group_size=plan.group_size,
        concurrency=plan.concurrency,
        sampling={"temperature": 1.0, "max_tokens": lesson.reply_tokens},
    )
    async with (
        Backpressure(stack.addresses["kafka"], run=stack.settings.run, limit=OPEN_GROUPS) as room,
        asyncio.TaskGroup() as tasks,
    ):
        sampling = tasks.create_task(rolled_out(stack, python, lesson.training, config, room, stop))
        for step in range(1, plan.steps + 1):
            served = tasks.create_task(
                watch.until(
                    lambda records, step=step: records.served >= step,  # type: ignore[misc]
                    what=f"version {step}",
                    timeout_s=STEP_S,
                )
            )
            await asyncio.wait((sampling, served), return_when=asyncio.FIRST_COMPLETED)
            if not served.done():
                raise RuntimeError(f"every training task was attempted before version {step}: take fewer --steps")
            print(f"version {step} of {plan.steps} served", flush=True)
        stop.set()
    return sampling.result()


def settings_of(plan: DemoPlan, data: Path, lesson: Lesson) -> Settings:
    """Return the settings of the stack, on the folder ``data``."""
    settings = demo_settings(plan, str(data))
    own: dict[str, Any] = {"options": merged(settings.options, lesson.options)}
    return settings.model_copy(update=own | ({} if lesson.model is None else {"model_dir": lesson.model}))


async def learnt(python: str, plan: DemoPlan, data: Path, lesson: Lesson) -> dict[str, Any]:
    """Evaluate, learn, evaluate again; returns the figures."""
    settings = settings_of(plan, data, lesson)
    fresh_folder(settings.data)
    async with (
        running_stack(settings, on_progress=print_change, on_note=print) as stack,
        watch_run(stack.addresses["kafka"], settings.run) as watch,
    ):
        await watch.until(lambda records: records.served >= 0, what="version 0", timeout_s=STEP_S)
        before = [await evaluated(stack, python, lesson, temperature) for temperature in (1.0, 0.0)]
        print(f"version 0: sampled {before[0]:.3f}, greedy {before[1]:.3f}", flush=True)
        counters, began = await read_counters(stack), time.monotonic()
        tally = await trained(stack, python, lesson, plan, watch)
        seconds = time.monotonic() - began
        usage = used(counters, await read_counters(stack), watch.records.steps.values())
        after = [await evaluated(stack, python, lesson, temperature) for temperature in (1.0, 0.0)]
        ledger = await at_rest(stack.addresses["kafka"])
        exactness = await exactness_of(stack)
    return {
        "seed": plan.seed,
        "control": plan.control,
        "steps": plan.steps,
        "before": before,
        "after": after,
        "learning_s": round(seconds, 1),
        "rollouts": dict(tally.ended),
        "failures": dict(tally.failures),
        "rewards": _means(tally.outcomes),
        "ledger": ledger,
        "exactness": exactness.model_dump(),
        "usage": usage_lines(usage),
    }


def _means(outcomes: Sequence[float]) -> list[float]:
    """Mean outcome of each ``SHOWN`` rollouts, in the order of their ends."""
    return [round(fmean(outcomes[at : at + SHOWN]), 3) for at in range(0, len(outcomes), SHOWN)]


async def exactness_of(stack: Stack) -> Exactness:
    """Return what the log tells of the tokens of all calls; the model's tokenizer is word-level."""
    folder = stack.settings.model_dir
    ids = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    end_id = json.loads((folder / "config.json").read_text())["eos_token_id"]
    metrics = stack.parts["gateway"].metrics
    assert metrics is not None
    return await measure_exactness(
        stack.addresses["kafka"], metrics, lambda text: [ids[word] for word in text.split()], end_id
    )


async def at_rest(bootstrap: str) -> Mapping[str, Any]:
    """Return the ledger once nothing is in the stream processors any more, or after ``SETTLE_S``."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        ledger = await read_ledger(bootstrap)
        moving = sum(count for stage, count in ledger.pending_by.items() if stage != "untrained")
        if not moving or time.monotonic() > deadline:
            return asdict(ledger)
        await asyncio.sleep(1.0)


def parser_of(about: str | None, data: str, steps: int) -> ArgumentParser:
    """Return the options of an experiment, with the defaults of its folder and its number of steps."""
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="Python with verifiers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--control", action="store_true", help="shuffle advantages inside their groups")
    parser.add_argument("--data", type=Path, default=Path(data))
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser


def report(figures: Mapping[str, Any], json_path: Path | None) -> None:
    """Print the figures, and write them."""
    for at, name in enumerate(("sampled", "greedy")):
        print(f"held-out reward, {name}: {figures['before'][at]:.3f} → {figures['after'][at]:.3f}")
    print(f"means of {SHOWN} rollouts: {figures['rewards']}")
    print(f"rollouts: {figures['rollouts']}, failures {figures['failures']}; learning {figures['learning_s']} s")
    print("\n".join(figures["usage"]))
    print(f"exactness: {figures['exactness']}")
    ledger = figures["ledger"]
    print(f"{ledger['started']} trajectories: the ledger {'adds up' if ledger['adds_up'] else 'DOES NOT ADD UP'}")
    if json_path is not None:
        json_path.write_text(json.dumps(figures, indent=1) + "\n")


def main() -> None:
    """Run it, print the figures, and write them."""
    given = parser_of(__doc__, ".headrace/environment-learning", 16).parse_args()
    plan = DemoPlan(seed=given.seed, steps=given.steps, control=given.control)
    with TemporaryDirectory() as folder:
        lesson = first_query(plan, Path(folder))
        report(asyncio.run(learnt(given.python, plan, given.data.absolute(), lesson)), given.json)


if __name__ == "__main__":
    main()
