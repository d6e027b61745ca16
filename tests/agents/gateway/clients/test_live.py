"""Real programs, unchanged, with a live vLLM behind the gateway.

Its tiny model speaks nonsense. What a program makes of that is its own affair; what is recorded is what was sampled.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.agents.gateway.clients.conftest import MAX_NEW_TOKENS
from tests.agents.gateway.clients.gateway_process import Launcher, running_process
from tests.agents.gateway.clients.programs import PROGRAMS, Program, run_program
from tests.agents.gateway.clients.relay import Exchange, Relay
from tests.agents.gateway.clients.runs import Tokens, assert_complete, assert_exact_and_once
from tests.conftest import Engine

pytestmark = [pytest.mark.clients, pytest.mark.vllm]

LIMIT_S = 180.0
"""Longest run of a program; only detects that it hangs."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_what_a_live_engine_samples_is_recorded_once(
    program: Program, long_vllm: Engine, launcher: Launcher, tmp_path: Path
) -> None:
    async with (
        Relay(long_vllm.url) as engine,
        running_process(tmp_path / "gateway", engine.url, launcher) as gateway,
        Relay(gateway.url) as relay,
    ):
        start = program.start(relay.url + (f"/s/{program.session}" if program.session else ""))
        ended = await run_program(start.with_options(program.bounded), tmp_path / "home", LIMIT_S)
    context = f"{ended.output}\n{gateway.log()}"
    sampled = dict(_sampled(each) for each in engine.exchanges if _is_a_call(each))
    calls = assert_exact_and_once(gateway.recorded(), sampled)
    assert assert_complete(relay.exchanges, calls) > 0, context
    assert {str(call.fact.call_id) for call in calls} == set(sampled)
    for call in calls:
        assert 0 < len(call.fact.sampled_ids or ()) <= MAX_NEW_TOKENS
        assert call.fact.delivered is False or [(each.start, each.end) for each in call.fact.version_spans] == [
            (0, len(call.fact.sampled_ids or ()))
        ]


def _is_a_call(exchange: Exchange) -> bool:
    """Whether it is a request for a client's answer; the gateway also asks the engine about itself."""
    return exchange.path == "/inference/v1/generate" and "request_id" in exchange.asked()


def _sampled(exchange: Exchange) -> tuple[str, tuple[Tokens, Tokens]]:
    """Call id, prompt and sampled tokens, from the request to the engine and its stream."""
    body: dict[str, Any] = exchange.asked()
    found = [each for event in exchange.events() for choice in event["choices"] for each in choice["token_ids"] or ()]
    return body["request_id"], (tuple(body["token_ids"]), tuple(found))
