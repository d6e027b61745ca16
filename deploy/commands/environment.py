"""``headrace environment``: rollouts of environments that others wrote, through the gateway."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.deploy.terminal import CommandGroup, print_line

if TYPE_CHECKING:
    from headrace.agents.environments.environment import OpenEnvironment
    from headrace.agents.environments.rollouts import RolloutsConfig

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group("environment", cls=CommandGroup)
def command() -> None:
    """Run rollouts of an environment of verifiers, OpenEnv or NeMo Gym, or of deletion tasks, through the gateway.

    Each rollout is a session of the gateway, so its trajectory has exact tokens; the environment's reward is its
    outcome, and the rollouts of a task are a group. Start a stack first (`headrace up`), and see
    agents/environments/README.md.
    """


def _shared(function: _F) -> _F:
    """Options of all environments."""
    options = (
        click.option(
            "--gateway",
            envvar="HEADRACE_GATEWAY",
            metavar="URL",
            help="Gateway (HEADRACE_GATEWAY); else the running stack's.",
        ),
        click.option(
            "--key",
            envvar="HEADRACE_GATEWAY_KEY",
            metavar="KEY",
            help="Key of the gateway, if it checks keys (HEADRACE_GATEWAY_KEY).",
        ),
        click.option("--kafka", metavar="HOST:PORT", help="Broker with the trainer's budget; else the stack's."),
        click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack."),
        click.option("--run", metavar="NAME", help="Training run whose budget applies (HEADRACE_RUN)."),
        click.option("--no-budget", is_flag=True, help="Sample as fast as possible: no trainer runs."),
        click.option("--max-groups", default=64, show_default=True, help="Most open groups, whatever the budget."),
        click.option("--share", default=1.0, show_default=True, help="Share of the budget of all samplers."),
        click.option("--groups", type=click.IntRange(1), help="Groups to run. Default: until the tasks end."),
        click.option("--group-size", default=8, show_default=True, help="Rollouts of each task."),
        click.option("--concurrency", default=16, show_default=True, help="Rollouts in flight."),
        click.option("--epochs", default=1, show_default=True, type=click.IntRange(1), help="Groups for each task."),
        click.option("--timeout", "timeout_s", default=1800.0, show_default=True, help="Seconds a rollout may take."),
        click.option("--agent", default="environment", show_default=True, help="Agent's name; selects the reward."),
        click.option("--model", default="policy", show_default=True, help="Name of the model."),
        click.option("--sampling", default="{}", metavar="JSON", help="Sampling besides temperature 1: max_tokens …"),
        click.option(
            "--failed-outcome",
            default=0.0,
            show_default=True,
            help="Outcome of rollouts whose failure the policy can bring about.",
        ),
        click.option("--evaluate", is_flag=True, help="Evaluation: never trained, no groups, no budget."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command.command("verifiers")
@click.argument("taskset")
@click.option("--python", required=True, metavar="PATH", help="Python with verifiers and the environment installed.")
@click.option("--env", "env", default="{}", metavar="JSON", help="verifiers' EnvConfig: harness, runtime, taskset …")
@click.option("--select", default="{}", metavar="JSON", help="verifiers' SelectConfig: shuffle, seed, skip, limit …")
@click.option("--path", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of its module.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="File for what the environment prints.")
@_shared
def verifiers(
    taskset: str, python: str, env: str, select: str, path: Path | None, log: Path | None, **shared: Any
) -> None:
    """Run TASKSET, an environment of the package verifiers (v1), unmodified, in its own Python.

    \b
    headrace environment verifiers gsm8k --python envs/bin/python \\
        --env '{"agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}}'
    """
    from headrace.agents.environments.verifiers_process import VerifiersConfig, verifiers_environment
    from headrace.deploy.configuration.settings import load_settings

    given = _json("--env", env)
    environment = {**given, "taskset": {"id": taskset, **given.get("taskset", {})}}
    rollouts = _rollouts(shared)
    config = VerifiersConfig(
        python=python,
        environment=environment,
        gateway=_gateway(shared),
        log=log or load_settings(data=shared["data"]).data / "environments" / f"{Path(taskset).name}.log",
        model=rollouts.model,
        sampling=rollouts.sampling,
        select=_json("--select", select),
        path=path,
        epochs=shared["epochs"],
        timeout_s=shared["timeout_s"],
        key=shared["key"],
    )
    _run(verifiers_environment(config), rollouts, shared)


@command.command("openenv")
@click.argument("url")
@click.option("--resets", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON lines for reset.")
@click.option("--seeds", type=click.IntRange(1), help="Tasks that are reset with the seeds 0 to N − 1.")
@click.option("--max-turns", default=64, show_default=True, type=click.IntRange(1), help="Answers in a rollout.")
@_shared
def openenv(url: str, resets: Path | None, seeds: int | None, max_turns: int, **shared: Any) -> None:
    """Run the OpenEnv environment whose server is at URL."""
    from headrace.agents.environments.openenv import OpenEnvConfig, openenv_environment

    if (resets is None) == (seeds is None):
        raise click.UsageError("name the tasks by one of --resets and --seeds")
    tasks = [{"seed": seed} for seed in range(seeds or 0)] if resets is None else _json_lines(resets)
    config = OpenEnvConfig(
        url=url,
        resets=tasks,
        max_turns=max_turns,
        timeout_s=shared["timeout_s"],
        epochs=shared["epochs"],
        key=shared["key"],
    )
    _run(openenv_environment(config), _rollouts(shared), shared)


@command.command("nemo-gym")
@click.argument("url")
@click.argument("dataset", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--max-turns", default=64, show_default=True, type=click.IntRange(1), help="Calls in a rollout.")
@_shared
def nemo_gym(url: str, dataset: Path, max_turns: int, **shared: Any) -> None:
    """Run the tasks of DATASET (JSON lines) at the NeMo Gym resources server at URL."""
    from headrace.agents.environments.environment import EnvironmentUnusable
    from headrace.agents.environments.nemo_gym import NemoGymConfig, nemo_gym_environment, read_rows

    try:
        rows = read_rows(dataset)
    except EnvironmentUnusable as error:
        raise click.UsageError(str(error)) from error
    config = NemoGymConfig(
        url=url,
        rows=rows,
        name=dataset.stem,
        max_turns=max_turns,
        timeout_s=shared["timeout_s"],
        epochs=shared["epochs"],
        key=shared["key"],
    )
    _run(nemo_gym_environment(config), _rollouts(shared), shared)


@command.command("deletion")
@click.argument("tasks", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--base-url", metavar="URL", help="Endpoint of OpenAI's API instead of a gateway: nothing is recorded.")
@click.option("--max-turns", default=48, show_default=True, type=click.IntRange(1), help="Messages of an attempt.")
@click.option("--store", type=click.Path(file_okay=False, path_type=Path), help="Folder for sandboxes; else temporary.")
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="File for a line of JSON an attempt.")
@_shared
def deletion(
    tasks: Path, base_url: str | None, max_turns: int, store: Path | None, results: Path | None, **shared: Any
) -> None:
    """Have a model attempt the TASKS that `headrace deletion-tasks` wrote, in sandboxes, by calls of tools.

    \b
    headrace environment deletion tasks.jsonl --model MODEL --group-size 1 \\
        --base-url http://localhost:8000/v1 --key KEY --results results.jsonl
    """
    import tempfile

    from headrace.agents.coder.deletion.environment import DeletionConfig, deletion_environment, read_tasks
    from headrace.agents.coder.deletion.harness import DeletionLimits
    from headrace.agents.environments.environment import EnvironmentUnusable

    if results is not None and not results.parent.is_dir():
        raise click.UsageError(f"--results: there is no folder {results.parent}")
    try:
        read = read_tasks(tasks)
    except EnvironmentUnusable as error:
        raise click.UsageError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="headrace-sandboxes-") as folder:
        config = DeletionConfig(
            tasks=read,
            store=store or Path(folder),
            limits=DeletionLimits(turns=max_turns),
            timeout_s=shared["timeout_s"],
            epochs=shared["epochs"],
            key=shared["key"],
            results=results,
        )
        _run(deletion_environment(config), _rollouts(shared), shared, base_url)


def _rollouts(shared: dict[str, Any]) -> "RolloutsConfig":
    from headrace.agents.environments.rollouts import RolloutsConfig
    from headrace.schemas.events import Purpose

    try:
        return RolloutsConfig(
            group_size=shared["group_size"],
            groups=shared["groups"],
            concurrency=shared["concurrency"],
            agent=shared["agent"],
            purpose=Purpose.EVALUATE if shared["evaluate"] else Purpose.TRAIN,
            model=shared["model"],
            sampling={"temperature": 1.0, **_json("--sampling", shared["sampling"])},
            failed_outcome=shared["failed_outcome"],
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _gateway(shared: dict[str, Any]) -> str:
    from headrace.deploy.stack.state import address_of

    return address_of("gateway", given=shared["gateway"], data=shared["data"])


def _run(
    environment: "OpenEnvironment", rollouts: "RolloutsConfig", shared: dict[str, Any], base_url: str | None = None
) -> None:
    """Run the rollouts until the tasks end, or until SIGINT or SIGTERM; a second one aborts those in flight.

    ``base_url``: an endpoint to use instead of the gateway, without a budget and without records."""
    from headrace.agents.environments.environment import EnvironmentUnusable
    from headrace.agents.environments.rollouts import AlwaysRoom, Tally, run_environment
    from headrace.agents.environments.sessions import GatewayFailed, Sessions, UnrecordedSessions, gateway_sessions
    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.log_format import log_to_stderr
    from headrace.deploy.stack.state import address_of
    from headrace.schemas.redaction import remember_secret

    settings = load_settings(data=shared["data"])
    if shared["key"]:
        remember_secret(shared["key"])
    log_to_stderr(settings.log_level)
    with_budget = not (shared["no_budget"] or shared["evaluate"] or base_url)
    gateway = "" if base_url else _gateway(shared)
    bootstrap = address_of("kafka", given=shared["kafka"], data=shared["data"]) if with_budget else None
    run, tally = shared["run"] or settings.run, Tally()

    async def rolled_out() -> None:
        from contextlib import AsyncExitStack

        from headrace.agents.backpressure import Backpressure

        async with AsyncExitStack() as exits:
            stop = _stop_on_signals()
            sessions: Sessions
            if base_url:
                sessions = UnrecordedSessions(base_url)
            else:
                sessions = await exits.enter_async_context(gateway_sessions(gateway, shared["key"]))
            room: Backpressure | AlwaysRoom = AlwaysRoom()
            if bootstrap is not None:
                limit, share = shared["max_groups"], shared["share"]
                room = await exits.enter_async_context(Backpressure(bootstrap, run=run, limit=limit, share=share))
            serving = await exits.enter_async_context(environment)
            await run_environment(rollouts, serving, sessions, room, stop=stop, tally=tally)

    failed: Exception | None = None
    try:
        if bootstrap is None:
            asyncio.run(rolled_out())
        else:
            run_with_kafka(bootstrap, rolled_out)
    except* (EnvironmentUnusable, GatewayFailed) as errors:
        failed = errors.exceptions[0]  # raised here, some Pythons would put it into a group again
    print_line(str(tally))
    if failed is not None:
        raise StackError(str(failed)) from failed


def _stop_on_signals() -> asyncio.Event:
    """Return the event that the first SIGINT or SIGTERM sets; a second one cancels the current task."""
    stop, running, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()
    assert running is not None

    def signalled() -> None:
        if stop.is_set():
            running.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    return stop


def _json(option: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{option} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.UsageError(f"{option} is no JSON object")
    return found


def _json_lines(file: Path) -> list[dict[str, Any]]:
    found = [_json(f"{file}:{number}", line) for number, line in enumerate(file.read_text().splitlines(), 1) if line]
    if not found:
        raise click.UsageError(f"{file} has no lines")
    return found
