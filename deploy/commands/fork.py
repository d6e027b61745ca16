"""``headrace fork``: continues a recorded attempt from the middle, as a group of attempts."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import print_line

if TYPE_CHECKING:
    from headrace.agents.rollouts.fork import ForkedGroup
    from headrace.deploy.demo.system import System
    from headrace.schemas.events import TrajectoryStarted


@click.command("fork")
@click.argument("trajectory", metavar="TRAJECTORY")
@click.option("--turn", type=click.IntRange(1), required=True, help="Continue after this many of its model calls.")
@click.option("--count", type=click.IntRange(2, 1024), default=8, show_default=True, help="Continuations: a group.")
@click.option("--arm", metavar="NAME", help="Variant of the system that made it, as in `headrace demo --arm`.")
@click.option(
    "--sandboxes",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder in which its sandboxes' snapshots were kept (`headrace demo coder --sandboxes DIR`).",
)
@click.option("--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Attempts in flight.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--vllm", metavar="URL", help="Inference engine; else HEADRACE_VLLM, else that of the stack.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(
    trajectory: str,
    turn: int,
    count: int,
    arm: str | None,
    sandboxes: Path | None,
    concurrency: int,
    kafka: str | None,
    vllm: str | None,
    data: str | None,
) -> None:
    """Continue TRAJECTORY after a number of its model calls, as a group of COUNT attempts.

    \b
      headrace demo search --keep                    a stack that stays up, in another shell
      headrace fork 019f… --turn 2 --count 8
      headrace lineage --trajectory 019f…            what became of a continuation

    TRAJECTORY is an attempt of a reference system that a sampler made in training. Each continuation begins with its
    context at that point, is scored and grouped like any other attempt, and trains none of the tokens that it shares
    with TRAJECTORY. The stack must be up: the engine samples the continuations. Where the attempt has a snapshot of its
    sandbox, the files come from it.
    """
    from headrace.agents.rollouts.config import RolloutConfig
    from headrace.agents.rollouts.fork import CannotFork, fork_point, read_events
    from headrace.agents.sandbox.protocol import SandboxError
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.stack.state import address_of

    bootstrap, engine = address_of("kafka", kafka, data), address_of("vllm", vllm, data)

    async def forked() -> "ForkedGroup":
        from headrace.agents.rollouts.attempts import Forks
        from headrace.agents.rollouts.sampler import run_fork

        point = fork_point(trajectory, await read_events(bootstrap, trajectory), turn)
        system = system_of(trajectory, point.started)
        if arm is not None and arm not in system.arms:
            raise CannotFork(f"the system {system.name} has no arm {arm!r}")
        if system.has_sandboxes and point.has_snapshots and sandboxes is None:
            raise CannotFork(
                f"trajectory {trajectory} has snapshots of its sandbox: name their folder with --sandboxes"
            )
        config = RolloutConfig(bootstrap, engine, run=point.started.run, concurrency=concurrency, sandboxes=sandboxes)
        made = (None if arm is None else system.arms[arm].attempts) or system.attempts
        async with made(config) as attempts:
            if not isinstance(attempts, Forks):
                raise CannotFork(f"attempts of the system {system.name} cannot be continued from their middle")
            return await run_fork(config, system.tasks, attempts, point, count=count)

    try:
        group = run_with_kafka(bootstrap, forked)
    except CannotFork as error:
        raise StackError(f"{error}.") from error
    except ExceptionGroup as errors:  # of the continuations
        refused = [each for each in errors.exceptions if isinstance(each, CannotFork | SandboxError)]
        if not refused:
            raise
        raise StackError(f"{refused[0]}.") from refused[0]
    print_line(f"group {group.group_id}: {count} continuations of {trajectory} after turn {turn}")
    for each in group.trajectory_ids:
        print_line(f"  {each}")
    if group.failed:
        raise StackError(
            f"{group.failed} of {count} failed: the engine at {engine} did not answer, or the harness does not make "
            "the context that the log has; each one's error is in its trajectory.ended."
        )


def system_of(trajectory: str, started: "TrajectoryStarted") -> "System":
    """Returns the reference system that made an attempt: its agent, and its task of that number. Raises
    :class:`headrace.agents.rollouts.fork.CannotFork` if none did."""
    from headrace.agents.rollouts.fork import CannotFork
    from headrace.agents.rollouts.journal import place_in
    from headrace.deploy.demo.systems import NAMES, system_named

    place, systems = place_in(started.task), [system_named(name) for name in NAMES]
    of_agent = [system for system in systems if started.agent in system.agents]
    if not of_agent:
        raise CannotFork(
            f"trajectory {trajectory} was made by the agent {started.agent!r}, which belongs to none of the reference "
            f"systems {', '.join(NAMES)}: continue it in your own harness (streams/README.md, continuations)"
        )
    for system in of_agent:
        levels = len(system.tasks.levels)
        if place is None or (place.level is not None and place.level >= levels):
            continue
        if system.tasks.training(place.number, place.level).task_id == started.task_id:
            return system
    raise CannotFork(
        f"trajectory {trajectory} attempted {started.task_id}, which is no training task of "
        f"{' or '.join(system.name for system in of_agent)}"
    )
