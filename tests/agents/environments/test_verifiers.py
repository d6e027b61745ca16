"""Environments of verifiers, unmodified, each in its own Python, through a whole gateway."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from headrace.agents.environments.rollouts import AlwaysRoom, RolloutsConfig, run_environment
from headrace.agents.environments.sessions import gateway_sessions
from headrace.agents.environments.verifiers_process import VerifiersConfig, verifiers_environment
from tests.agents.environments.played import Logged, playing
from tests.agents.gateway.clients.installed import programs_of
from tests.conftest import CACHE, Engine

pytestmark = [pytest.mark.clients, pytest.mark.vllm]

VERIFIERS = ("verifiers[ta]==0.4.0",)
NULL = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    """verifiers keeps the environments of its scripts in the home folder; uv, which makes them, is beside pytest."""
    monkeypatch.setenv("HOME", str(CACHE / "clients" / "verifiers-home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def word_list(folder: Path, *words: str) -> Path:
    """A corpus of words for nltk, which would download its own."""
    corpus = folder / "corpora" / "words"
    corpus.mkdir(parents=True)
    for name in ("en", "en-basic", "README"):
        (corpus / name).write_text("".join(f"{word}\n" for word in words))
    return folder


@pytest.mark.usefixtures("home")
async def test_hangman_of_textarena_becomes_groups_with_its_rewards(
    environment_render: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NLTK_DATA", str(word_list(tmp_path / "nltk", "boat")))
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
            tally = await run_environment(rollouts, environment, sessions, AlwaysRoom(), stop=asyncio.Event())
    log = Logged(tmp_path / "gateway")
    log.assert_exact(engine)
    log.assert_groups([4, 4], lambda ended: ended.answer["rewards"]["game_reward"][0])
    assert sorted(tally.outcomes) == [0.25] * 4 + [1.0] * 4
    assert {each.harness_version for each in log.started.values()} == {"verifiers-0.4.0"}
    assert {each.task["environment"] for each in log.started.values()} == {"textarena"}
