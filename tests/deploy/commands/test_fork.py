"""``headrace fork`` finds the system of a recorded attempt, and says what it lacks."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.agents.rollouts.fork import CannotFork
from headrace.agents.rollouts.journal import LABEL, Place
from headrace.deploy.cli import cli
from headrace.deploy.commands.fork import system_of
from headrace.deploy.demo.systems import NAMES, system_named
from headrace.schemas.events import TrajectoryStarted

NUMBER = 1_000_017


def started(task_id: str, agent: str, level: int | None) -> TrajectoryStarted:
    place = Place("sampler", NUMBER, 0, 0, level)
    return TrajectoryStarted(task_id=task_id, agent=agent, task={LABEL: place.label})


def fork(*arguments: str, data: Path) -> Result:
    return CliRunner().invoke(cli, ["fork", *arguments, "--data", str(data)])


@pytest.mark.parametrize("name", NAMES)
def test_the_system_is_that_of_the_agent_and_the_task(name: str) -> None:
    system = system_named(name)
    for level in (None, 0, len(system.tasks.levels) - 1):
        task = system.tasks.training(NUMBER, level)
        assert system_of("t", started(task.task_id, system.agents[0], level)) is system


@pytest.mark.parametrize(
    ("task_id", "agent", "level", "why"),
    [
        ("t", "mine", None, "belongs to none of the reference systems"),
        ("search-train-000017", "search", None, "no training task of"),
        ("search-train-1000017-2hops", "search", 99, "no training task of"),
    ],
)
def test_an_attempt_of_no_reference_system_is_refused(task_id: str, agent: str, level: int | None, why: str) -> None:
    with pytest.raises(CannotFork, match=why):
        system_of("t", started(task_id, agent, level))


def test_without_a_stack_it_says_what_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = fork("019f", "--turn", "2", data=tmp_path)
    assert result.exit_code != 0
    assert "No address of kafka is known: start a stack with `headrace up`" in result.output
    monkeypatch.setenv("HEADRACE_KAFKA", "127.0.0.1:1")
    assert "No address of vllm is known" in fork("019f", "--turn", "2", data=tmp_path).output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["019f"], "--turn"), (["019f", "--turn", "0"], "--turn"), (["019f", "--turn", "2", "--count", "1"], "--count")],
)
def test_a_turn_and_at_least_two_continuations_are_needed(arguments: list[str], why: str, tmp_path: Path) -> None:
    result = fork(*arguments, data=tmp_path)
    assert result.exit_code == 2
    assert why in result.output


@pytest.mark.kafka
def test_an_unknown_trajectory_is_named(kafka: str, tmp_path: Path) -> None:
    found: dict[str, Any] = {"--kafka": kafka, "--vllm": "http://127.0.0.1:1"}
    result = fork("019f", "--turn", "2", *(each for pair in found.items() for each in pair), data=tmp_path)
    assert result.exit_code == 1
    assert "the log has no events of trajectory 019f" in result.output
