"""Environments of verifiers, unmodified, each in its own Python, through a whole gateway."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.environments.environment import EnvironmentUnusable
from headrace.agents.environments.rollouts import AlwaysRoom, RolloutsConfig, run_environment
from headrace.agents.environments.sessions import gateway_sessions
from headrace.agents.environments.verifiers_process import VerifiersConfig, verifiers_environment
from headrace.schemas.events import EndStatus, TrajectoryEnded
from tests.agents.environments.played import Logged, playing
from tests.agents.environments.word_list import word_list
from tests.agents.gateway.clients.installed import programs_of
from tests.agents.gateway.running import recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import answering, until
from tests.conftest import CACHE, Engine

pytestmark = [pytest.mark.clients, pytest.mark.vllm]

VERIFIERS = ("verifiers[ta]==0.4.0",)
NULL = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    """verifiers keeps the environments of its scripts in the home folder; uv, which makes them, is beside pytest."""
    monkeypatch.setenv("HOME", str(CACHE / "clients" / "verifiers-home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("home")
async def test_hangman_of_textarena_becomes_groups_with_its_rewards(
    environment_render: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NLTK_DATA", str(word_list(tmp_path / "nltk", ["boat"])))
    plans = (("I know it: [BOAT]",), ("First [B]", "and again [B]"))
    async with playing(tmp_path / "gateway", environment_render, plans) as (engine, gateway):
        config = VerifiersConfig(
            python=str(programs_of(VERIFIERS) / "python"),
            environment={"taskset": {"id": "textarena", "game": "Hangman-v0"}, "player": NULL},
            gateway=gateway.url,
            log=tmp_path / "environment.log",
        )
        rollouts = RolloutsConfig(group_size=4, groups=2, concurrency=4)
        async with gateway_sessions(gateway.url) as sessions, verifiers_environment(config) as environment:
            began = time.monotonic()
            tally = await run_environment(rollouts, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
            print(f"8 rollouts, 4 at once: {time.monotonic() - began:.1f} s")
    log = Logged(tmp_path / "gateway")
    log.assert_exact(engine)
    log.assert_groups([4, 4], lambda ended: ended.answer["rewards"]["game_reward"][0])
    assert sorted(tally.outcomes) == [0.25] * 4 + [1.0] * 4
    assert {each.harness_version for each in log.started.values()} == {"verifiers-0.4.0"}
    assert {each.task["environment"] for each in log.started.values()} == {"textarena"}


def weather(gateway: str, folder: Path, **settings: Any) -> VerifiersConfig:
    """The tests' own taskset, with a tool."""
    return VerifiersConfig(
        python=str(programs_of(VERIFIERS) / "python"),
        environment={"taskset": {"id": "weather_shop"}, "agent": NULL, **settings.pop("environment", {})},
        gateway=gateway,
        log=folder / "environment.log",
        path=Path(__file__).with_name("tasksets"),
        **settings,
    )


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.mark.usefixtures("home")
async def test_tools_weights_and_failures(environment_render: Engine, tmp_path: Path) -> None:
    """Of three tasks, one is scored, and two fail in ways that a policy can bring about."""
    plans = ((CALL, "It is cold."), ("I think it is cold.",))
    async with (
        playing(tmp_path / "gateway", environment_render, plans) as (engine, gateway),
        gateway_sessions(gateway.url) as sessions,
        verifiers_environment(
            weather(gateway.url, tmp_path, select={"exclude": {"names": ["too_slow"]}})
        ) as environment,
    ):
        rollouts = RolloutsConfig(group_size=2, concurrency=2, failed_outcome=-1.0)
        tally = await run_environment(rollouts, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
    log = Logged(tmp_path / "gateway")
    log.assert_exact(engine)
    by_kind: dict[str, list[Any]] = {}
    for name, ended in log.ended.items():
        by_kind.setdefault(log.started[name].task["name"], []).append(ended)
    right = by_kind.pop("right")
    assert sorted(each.outcome for each in right) == [1.0, 1.5]
    assert sorted(each.answer["rewards"]["asked"] for each in right) == [[0.0, 0.5], [1.0, 0.5]]
    assert {each.answer["metrics"]["letters"] for each in right} == {11.0, 19.0}
    failures = {kind: {each.answer["failure"]["label"] for each in ended} for kind, ended in by_kind.items()}
    assert failures == {
        "scoring_raises": {"TaskError"},
        "not_finite": {"reward_not_finite"},
    }
    assert {(each.status, each.outcome) for ended in by_kind.values() for each in ended} == {(EndStatus.FAILED, -1.0)}
    assert tally.failures == {"TaskError": 2, "reward_not_finite": 2}
    assert [sorted(member.reward for member in group.members) for group in log.groups] == [[1.0, 1.5]]
    assert "this is printed by the environment" in (tmp_path / "environment.log").read_text()


@pytest.mark.usefixtures("home")
async def test_a_harness_may_call_the_model_itself(environment_render: Engine, tmp_path: Path) -> None:
    """In the environment's process, so no process is started for a rollout."""
    task = {"name": "ada", "prompt": "what is the employer of ada ?", "wanted": ["ada", "employer"]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    plans = (("search_corpus ada employer",), ("search_corpus ada",), ("answer ada",), ("search_corpus a the ada in",))
    environment = {
        "taskset": {"id": "first_query", "file": str(tmp_path / "tasks.jsonl")},
        "agent": {"harness": {"id": "in_process"}, "runtime": {"type": "subprocess"}},
    }
    async with (
        playing(tmp_path / "gateway", environment_render, plans) as (engine, gateway),
        gateway_sessions(gateway.url) as sessions,
        verifiers_environment(weather(gateway.url, tmp_path, environment=environment)) as serving,
    ):
        rollouts = RolloutsConfig(group_size=4, concurrency=4)
        tally = await run_environment(rollouts, serving, sessions, AlwaysRoom(), stop=asyncio.Event())
    Logged(tmp_path / "gateway").assert_exact(engine)
    assert sorted(tally.outcomes) == [0.0, 0.25, 0.5, 1.0]


@pytest.mark.usefixtures("home")
async def test_a_rollout_that_takes_too_long_is_a_failure_with_an_outcome(tmp_path: Path) -> None:
    async with (
        answering("never asked") as engine,
        running_gateway(tmp_path / "gateway", [engine.url]) as gateway,
        gateway_sessions(gateway.url) as sessions,
    ):
        config = weather(gateway.url, tmp_path, timeout_s=1.0, select={"include": {"names": ["too_slow"]}})
        async with verifiers_environment(config) as environment:
            rollouts = RolloutsConfig(group_size=2)
            await run_environment(rollouts, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
    ended = [each.fact for each in recorded_in(tmp_path / "gateway") if isinstance(each.fact, TrajectoryEnded)]
    assert [(each.status, each.outcome, each.answer["failure"]["label"]) for each in ended] == [
        (EndStatus.FAILED, 0.0, "rollout_timeout")
    ] * 2


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"taskset": {"id": "not_installed_anywhere"}}, "not_installed_anywhere"),
        ({"agent": NULL | {"model": "m", "client": {"type": "eval"}}}, "leave one without"),
    ],
)
async def test_an_environment_that_cannot_run_says_why(environment: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusable, match=f"{said}.*see .*environment.log"):
        async with verifiers_environment(weather("http://127.0.0.1:9", tmp_path, environment=environment)):
            pass


async def test_a_python_that_is_none_says_so(tmp_path: Path) -> None:
    config = VerifiersConfig(str(tmp_path / "python"), {}, "http://127.0.0.1:9", tmp_path / "environment.log")
    with pytest.raises(EnvironmentUnusable, match="--python"):
        async with verifiers_environment(config):
            pass


@pytest.mark.usefixtures("home")
async def test_rollouts_in_flight_when_the_program_dies_are_aborted(environment_render: Engine, tmp_path: Path) -> None:
    async with (
        playing(tmp_path / "gateway", environment_render, [("It is cold.",)]) as (_, gateway),
        gateway_sessions(gateway.url) as sessions,
    ):
        config = weather(gateway.url, tmp_path, select={"include": {"names": ["too_slow"]}})
        async with verifiers_environment(config) as environment:
            running = asyncio.create_task(
                run_environment(RolloutsConfig(group_size=2), environment, sessions, AlwaysRoom(), stop=asyncio.Event())
            )
            await until(lambda: gateway.sessions == 2)
            await asyncio.sleep(0.5)
            environment._process.kill()
            with pytest.raises(ExceptionGroup) as raised:
                await running
            assert raised.group_contains(EnvironmentUnusable, match="the environment's program ended")
        assert gateway.sessions == 0
    assert {each.status for each in Logged(tmp_path / "gateway").ended.values()} == {EndStatus.ABORTED}
