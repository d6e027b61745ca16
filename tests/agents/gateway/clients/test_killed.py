"""``kill -9`` of the gateway while a real program works: no answer that the program has received is lost."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.agents.gateway.clients.gateway_process import GatewayProcess, Launcher, running_process
from tests.agents.gateway.clients.programs import DONE, PROGRAMS, Program, run_program
from tests.agents.gateway.clients.relay import Exchange, Relay
from tests.agents.gateway.clients.runs import assert_complete, assert_exact_and_once
from tests.agents.gateway.clients.script import PlayedModel
from tests.agents.gateway.scripted_engine import Reply
from tests.conftest import Engine

pytestmark = [pytest.mark.clients, pytest.mark.vllm, pytest.mark.timeout(900)]

LIMIT_S = 240.0
"""Longest run of a program; only detects that it hangs."""

SLOW = {"chunk_delay_s": 0.1}
"""Between the pieces of an answer, so that there is a middle."""


class Killer:
    """Kills the gateway twice: in the middle of the second answer, and as soon as an answer has arrived after that.
    Each time it is started again on the same folder."""

    def __init__(self, *, restarts: bool) -> None:
        """``restarts``: whether it is started again while the program still runs."""
        self._restarts = restarts
        self.gateway: GatewayProcess | None = None
        self.kills = 0
        self.starts: list[asyncio.Task[None]] = []

    def in_the_middle(self, turn: int) -> None:
        """The engine begins to answer turn ``turn``, counted from 0."""
        if turn == 1 and not self.kills:
            asyncio.get_running_loop().call_later(2.5 * SLOW["chunk_delay_s"], self._kill)
            self.kills = 1

    def at_the_end(self, exchange: Exchange) -> None:
        """The program has received a piece."""
        if self.kills == 1 and self.starts and exchange.outcome != "side" and exchange.usage() is not None:
            self.kills = 2
            self._kill()

    def _kill(self) -> None:
        assert self.gateway is not None
        self.gateway.kill()
        if self._restarts:
            self.starts.append(asyncio.create_task(self.gateway.start()))


class KillingModel(PlayedModel):
    """The played model, which says when it begins an answer of the program's conversation."""

    def __init__(self, killer: Killer, *how: Any) -> None:
        super().__init__(*how, **SLOW)
        self._killer = killer

    def reply_to(self, body: dict[str, Any]) -> Reply:
        reply = super().reply_to(body)
        sampled = self.played[body["request_id"]]
        if not sampled.is_side:
            self._killer.in_the_middle(self.turn_of(sampled.prompt_ids))
        return reply


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_no_answer_that_arrived_is_lost(
    program: Program, long_render_server: Engine, launcher: Launcher, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    model_dir, killer = long_render_server.model_dir, Killer(restarts=program.survives)
    answers = program.answers(f"echo hello | tee -a {said}")
    model = KillingModel(killer, answers, model_dir, long_render_server.url)
    async with (
        model,
        running_process(tmp_path / "gateway", model.url, launcher) as gateway,
        Relay(gateway.url, heard=killer.at_the_end) as relay,
    ):
        killer.gateway = gateway
        start = program.start(relay.url + (f"/s/{program.session}" if program.session else ""))
        ended = await run_program(start, tmp_path / "home", LIMIT_S)
        await asyncio.gather(*killer.starts)
        if not program.survives:
            await gateway.start()
    context = f"{ended.output}\n{gateway.log()}"
    calls = assert_exact_and_once(
        gateway.recorded(), {name: (each.prompt_ids, each.answer_ids) for name, each in model.played.items()}
    )
    whole = assert_complete(relay.exchanges, calls)
    broken = [each for each in relay.exchanges if each.status is None or not (each.is_whole or each.has_ended)]
    assert broken, "no connection broke"
    if not program.survives:
        assert (ended.status != 0, whole, killer.kills) == (True, 1, 1), context
        return
    assert (killer.kills, whole >= 2) == (2, True)
    assert ended.status == 0, context
    assert DONE in ended.output
    # One trajectory, as if nothing had happened, unless the program keeps what it received of the broken answer.
    main = {call.trajectory_id for call in calls if not model.played[str(call.fact.call_id)].is_side}
    assert len(main) == 1, context
    segments = sum(call.starts_segment for call in calls if call.trajectory_id in main)
    outcomes = {str(each.outcome) for each in relay.exchanges} - {"None", "side"}
    assert program.segments <= segments <= program.segments_killed
    assert outcomes <= {*program.outcomes, *program.outcomes_killed}
