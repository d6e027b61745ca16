"""Real programs, unchanged, against the gateway, with a scripted engine behind vLLM's templates and parsers: what they
do is certain, and every token is compared."""

from pathlib import Path

import pytest

from headrace.schemas.events import ModelCalled, Role, ToolCalled, ToolReturned, ToolStatus, TrajectoryStarted
from tests.agents.gateway.clients.gateway_process import Launcher, running_process
from tests.agents.gateway.clients.programs import DONE, PROGRAMS, Program, run_program
from tests.agents.gateway.clients.relay import Relay
from tests.agents.gateway.clients.script import PlayedModel
from tests.agents.gateway.running import exact_calls
from tests.conftest import Engine

pytestmark = [pytest.mark.clients, pytest.mark.vllm]

LIMIT_S = 180.0
"""Longest run of a program; only detects that it hangs."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_a_program_becomes_exact_trajectories(
    program: Program, long_render_server: Engine, launcher: Launcher, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    model_dir = long_render_server.model_dir
    answers = program.answers(f"echo hello | tee -a {said}")
    model = PlayedModel(answers, model_dir, long_render_server.url)
    async with (
        model,
        running_process(tmp_path / "gateway", model.url, launcher) as gateway,
        Relay(gateway.url) as relay,
    ):
        start = program.start(relay.url + (f"/s/{program.session}" if program.session else ""))
        ended = await run_program(start, tmp_path / "home", LIMIT_S)
    context = f"{ended.output}\n{gateway.log()}"
    assert ended.status == 0, context
    assert DONE in ended.output
    assert said.read_text() == "hello\n" * 2

    assert all(exchange.status == 200 for exchange in relay.exchanges), context
    answered = [exchange for exchange in relay.exchanges if exchange.outcome is not None]
    outcomes = [str(exchange.outcome) for exchange in answered]
    assert [each for each in outcomes if each != "side"] == [*program.outcomes]
    assert outcomes.count("side") == program.side_calls
    sessions = {exchange.session for exchange in answered}
    assert len(sessions) == 1
    _assert_named(program, str(*sessions), tmp_path / "home", ended.output)

    events = gateway.recorded()
    calls = exact_calls(events)
    recorded = {call.fact.call_id: (tuple(call.prompt_ids), tuple(call.fact.sampled_ids or ())) for call in calls}
    assert len(recorded) == len(calls) == len(answers) + program.side_calls
    assert recorded == {name: (each.prompt_ids, each.answer_ids) for name, each in model.played.items()}
    main, *side = sorted(
        {call.trajectory_id for call in calls},
        key=lambda trajectory: [
            model.played[str(c.fact.call_id)].is_side for c in calls if c.trajectory_id == trajectory
        ],
    )
    assert len(side) == program.side_calls
    assert sum(call.starts_segment for call in calls if call.trajectory_id == main) == program.segments
    assert all(len(call.fact.logprobs or ()) == len(call.fact.sampled_ids or ()) for call in calls)

    started = {each.trajectory_id: each.fact for each in events if isinstance(each.fact, TrajectoryStarted)}
    assert started[main].agent == program.agent
    assert started[main].role is Role.TRAINABLE
    assert started[main].task_id in sessions
    assert all(started[each].role is Role.FROZEN for each in side)
    tools = [each.fact for each in events if isinstance(each.fact, ToolCalled)]
    returned = [each.fact for each in events if isinstance(each.fact, ToolReturned)]
    assert len(returned) == program.tools
    assert [each.call_id for each in tools[: program.tools]] == [each.call_id for each in returned]
    assert all(each.status is ToolStatus.OK and "hello" in str(each.result) for each in returned)
    assert {type(each.fact) for each in events} <= {TrajectoryStarted, ModelCalled, ToolCalled, ToolReturned}


def _assert_named(program: Program, session: str, home: Path, output: str) -> None:
    """The session is the client's own: it prints it, or has a file of that name."""
    match program.name:
        case "claude-code":
            assert list(home.glob(f".claude/projects/*/{session}.jsonl"))
        case "codex":
            assert f"session id: {session}" in output
        case "opencode":
            assert session.startswith("ses_")
        case _:
            assert not program.session or session == program.session
