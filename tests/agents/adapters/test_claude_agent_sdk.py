"""The Claude Agent SDK with the recording of its messages and a scripted Claude Code."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from tests.agents.adapters.claude_cli import (
    answered,
    prompt,
    result,
    returned,
    scripted_cli,
    started,
    task,
    text,
    use,
    user,
)
from tests.agents.adapters.shop import ANSWER, by_trajectory, fields_of
from tests.agents.sdk_helpers import kinds
from tests.beside import installed


@pytest.fixture(autouse=True)
def _sdk(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the SDK behind headrace's own packages on the module path."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed(Path(__file__).parent / "claude-agent-sdk.txt"))])


@pytest.fixture
def recording(headrace: Headrace) -> Any:
    from headrace.agents.adapters.claude_agent_sdk import HeadraceRecording

    return HeadraceRecording(headrace, agent="checkout")


def in_order(notes: list[Note]) -> list[Note]:
    """The events by their numbers: a model call is noted once all of its blocks have come."""
    return sorted(notes, key=lambda note: note.seq or 0)


def run(size: str = "44") -> list[dict[str, Any]]:
    """A search, a tool that fails, an answer. The first result comes before the second call."""
    return [
        *prompt(f"boots in {size}?"),
        *answered("msg_1", text("I look."), use(f"a{size}", "search", query=size)),
        returned(f"a{size}", f"boots {size}"),
        *answered("msg_1", use(f"b{size}", "stock", query=size)),
        returned(f"b{size}", [{"type": "text", "text": "no shop"}], failed=True),
        *answered("msg_2", text(ANSWER)),
        result(ANSWER),
    ]


def assert_run(notes: list[Note], size: str) -> None:
    assert kinds(notes) == [
        *("trajectory.started", "model.called", "tool.called", "tool.returned", "tool.called", "tool.returned"),
        *("model.called", "trajectory.ended"),
    ]
    assert [note.seq for note in notes] == [*range(len(notes))]
    assert [each["arguments"] for each in fields_of(notes, "tool.called")] == [{"query": size}] * 2
    found, failed = fields_of(notes, "tool.returned")
    assert [found["call_id"], failed["call_id"]] == [f"a{size}", f"b{size}"]
    assert [(each["status"], each["result"]) for each in (found, failed)] == [
        *(("ok", f"boots {size}"), ("error", "no shop")),
    ]
    first, last = fields_of(notes, "model.called")
    assert [each["role"] for each in first["messages"]] == ["user", "assistant"]
    assert first["messages"][0]["content"] == f"boots in {size}?"
    assert [each["id"] for each in first["messages"][1]["tool_calls"]] == [f"a{size}", f"b{size}"]
    assert [each["role"] for each in last["messages"]] == ["tool", "tool", "assistant"]
    assert (first["model"], first["finish_reason"], last["finish_reason"]) == ("claude-5", "tool_calls", "stop")
    assert {each["usage"].prompt_tokens for each in (first, last)} == {9}
    assert first.get("sampled_ids") is None  # nobody knows the tokens: it is not trained
    assert (notes[-1].fields["status"], notes[-1].fields["answer"]) == ("completed", ANSWER)


async def read(messages: AsyncIterator[Any]) -> list[str]:
    return [type(message).__name__ async for message in messages]


async def test_two_queries_at_a_time_are_two_trajectories(
    recording: Any, headrace: Headrace, notes: list[Note]
) -> None:
    queries = [
        read(recording.query(prompt=f"boots in {size}?", transport=scripted_cli(run(size)), task_id=f"order-{size}"))
        for size in ("44", "46")
    ]
    import claude_agent_sdk

    plain = await read(claude_agent_sdk.query(prompt="boots in 44?", transport=scripted_cli(run())))
    assert await asyncio.gather(*queries) == [plain, plain]
    for size, own in zip(("44", "46"), by_trajectory(notes), strict=True):
        assert_run(in_order(own), size)
        assert (own[0].fields["task_id"], own[0].fields["agent"]) == (f"order-{size}", "checkout")
    assert headrace.stats.dropped == {}


async def test_code_that_the_sdk_starts_finds_the_run_and_the_program_does_not(
    recording: Any, headrace: Headrace, notes: list[Note]
) -> None:
    import claude_agent_sdk as sdk

    found: list[str] = []

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        found.append(headrace.current().id)
        return {}

    hooks: Any = {"UserPromptSubmit": [sdk.HookMatcher(hooks=[hook])]}
    options = sdk.ClaudeAgentOptions(hooks=hooks)
    async for _ in recording.query(prompt="go", options=options, transport=scripted_cli(run())):
        assert headrace.current().id not in {note.trajectory_id for note in notes}
    async with recording.client(options, scripted_cli(run())) as client:
        await client.query("go")
        await read(client.receive_response())
        assert headrace.current().id not in {note.trajectory_id for note in notes}
    assert found == list({note.trajectory_id: None for note in notes})


async def test_a_connection_that_fails(recording: Any, headrace: Headrace, notes: list[Note]) -> None:
    async def program() -> None:
        async with recording.client(transport=scripted_cli(run())) as client:
            await client.query("go")
            await read(client.receive_response())
            raise KeyError("of the program")

    with pytest.raises(KeyError):
        await program()
    assert (notes[-1].fields["status"], notes[-1].fields["error"].kind) == ("failed", KeyError)
    cli = scripted_cli()
    cli.connect = cli.end_input = lambda: 1 / 0
    client = recording.client(transport=cli)
    with pytest.raises(ZeroDivisionError):
        await client.connect()
    assert (notes[-1].fields["status"], notes[-1].fields["error"].kind) == ("failed", ZeroDivisionError)
    client = recording.client(transport=(cli := scripted_cli([*prompt("go"), *answered("msg_1", text("So far."))])))
    cli.failure = OSError("broken")
    await client.connect()
    await client.query("go")
    with pytest.raises(Exception, match="broken"):
        await read(client.receive_messages())
    await client.disconnect()
    last = by_trajectory(notes)[-1]
    assert kinds(in_order(last)) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert last[-1].fields["status"] == "failed"
    assert headrace.stats.dropped == {}


async def test_a_connection_is_one_trajectory_of_several_turns(
    recording: Any, headrace: Headrace, notes: list[Note]
) -> None:
    import claude_agent_sdk as sdk

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        return {"systemMessage": given["prompt"]}

    cli = scripted_cli(run(), [*prompt("sure?"), *answered("msg_3", text("Yes.")), result("Yes.")])
    hooks: Any = {"UserPromptSubmit": [sdk.HookMatcher(hooks=[hook])]}
    options = sdk.ClaudeAgentOptions(hooks=hooks, session_id="thread-7")
    async with recording.client(options, cli) as client:
        for question in ("boots in 44?", "sure?"):
            await client.query(question)
            names = await read(client.receive_response())
            assert names[-1] == "ResultMessage"
    assert cli.prompts == ["boots in 44?", "sure?"]
    assert cli.answers == [{"systemMessage": "boots in 44?"}, {}, {"systemMessage": "sure?"}, {}]
    assert options.hooks == hooks
    (own,) = by_trajectory(notes)
    assert kinds(in_order(own))[-3:] == ["model.called", "model.called", "trajectory.ended"]
    assert own[0].fields["session"] == "thread-7"
    last = fields_of(own, "model.called")[-1]["messages"]
    assert [each["content"] for each in last] == ["sure?", "Yes."]
    assert own[-1].fields["answer"] == "Yes."
    assert headrace.stats.dropped == {}


SUB = [
    *answered("sub_1", use("c", "search", query="44"), parent="a"),
    returned("c", "boots 44", parent="a"),
    *answered("sub_2", text("It is 44."), parent="a"),
]
ASK = [*prompt("go"), *answered("msg_1", use("a", "Agent", prompt="44?", subagent_type="Explore"))]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([started("a"), *SUB, returned("a", "It is 44.")], "completed"),
        (
            [
                started("a"),
                *SUB[:-1],
                task("task_updated", "a", patch={"status": "completed"}),
                returned("a", "It is 44."),
            ],
            "completed",
        ),
        ([*SUB, returned("a", "It is 44.")], "completed"),
        (
            [
                *(started("a", is_backgrounded=True), returned("a", "launched"), *answered("msg_2", text("Wait."))),
                *(result("Wait."), *SUB, task("task_updated", "a", patch={"status": "completed"})),
                *(task("task_notification", "a", status="completed", summary="It is 44.", output_file="o"),),
                *prompt("<task-notification>"),
            ],
            "completed",
        ),
        ([started("a", is_backgrounded=True), returned("a", "launched"), *SUB], "aborted"),
        (
            [
                *(started("a", is_backgrounded=True), returned("a", "launched"), *SUB),
                task("task_updated", "a", patch={"status": "failed"}),
            ],
            "failed",
        ),
    ],
    ids=["foreground", "not_shown", "untold", "background", "unfinished", "failed"],
)
async def test_a_sub_agent(
    lines: list[dict[str, Any]], status: str, recording: Any, headrace: Headrace, notes: list[Note]
) -> None:
    cli = scripted_cli([*ASK, *lines, *answered("msg_3", text(ANSWER)), result(ANSWER)])
    await read(recording.query(prompt="go", transport=cli))
    main, sub = (in_order(own) for own in by_trajectory(notes))
    assert kinds(main)[:4] == ["trajectory.started", "model.called", "tool.called", "subagent.started"]
    once = ("tool.returned", "subagent.finished", "trajectory.ended")
    assert [kinds(main).count(each) for each in once] == [1, 1, 1]
    shown = ["model.called"] if SUB[-1] in lines else []
    assert kinds(sub) == [
        *("trajectory.started", "model.called", "tool.called", "tool.returned", *shown, "trajectory.ended"),
    ]
    assert sub[0].fields["parent_trajectory_id"] == main[0].trajectory_id
    assert (sub[0].fields["agent"], sub[-1].fields["status"]) == ("Explore", status)
    (finished,) = fields_of(main, "subagent.finished")
    assert finished["status"] == status
    if lines[-1].get("subtype") == "init":  # the turn after the notification
        assert kinds(main)[-3:] == ["subagent.finished", "model.called", "trajectory.ended"]
    assert sub[-1].fields.get("answer") == ("It is 44." if status == "completed" else None)
    assert fields_of(sub, "model.called")[0]["messages"][0]["content"] == "44?"
    assert (main[-1].fields["status"], main[-1].fields["answer"]) == ("completed", ANSWER)
    assert headrace.stats.dropped == {}


@pytest.mark.parametrize(
    "late",
    [
        answered("msg_9", text("Late."), use("z", "Read", file_path="x"), parent="a"),
        [returned("b", "late", parent="a")],
        [started("a")],
        [task("task_notification", "a", status="failed", summary="?", output_file="o")],
    ],
    ids=["answer", "result", "start", "notification"],
)
async def test_what_comes_of_a_sub_agent_after_its_end_begins_no_other(
    late: list[dict[str, Any]], recording: Any, headrace: Headrace, notes: list[Note]
) -> None:
    lines = [started("a"), *SUB, returned("a", "It is 44."), *late]
    cli = scripted_cli([*ASK, *lines, *answered("msg_3", text(ANSWER)), result(ANSWER)])
    await read(recording.query(prompt="go", transport=cli))
    main, sub = (in_order(own) for own in by_trajectory(notes))
    assert [kinds(main).count(each) for each in ("subagent.started", "subagent.finished")] == [1, 1]
    assert kinds(sub)[-2:] == ["model.called", "trajectory.ended"]
    assert (main[-1].fields["status"], main[-1].fields["answer"]) == ("completed", ANSWER)
    assert headrace.stats.dropped.keys() <= {"after_end"}
    assert bool(headrace.stats.dropped) == ("assistant" in {each["type"] for each in late})


async def test_a_compaction_and_partial_messages(recording: Any, headrace: Headrace, notes: list[Note]) -> None:
    usage = {"usage": {"output_tokens": 7}, "delta": {"stop_reason": "max_tokens"}}
    event = {"uuid": "u", "session_id": "s", "parent_tool_use_id": None}
    delta = {"type": "stream_event", "event": {"type": "message_delta", **usage}, **event}
    boundary = {"trigger": "auto", "pre_tokens": 900, "post_tokens": 90}
    cli = scripted_cli(
        [
            *(*prompt("go"), *answered("msg_1", text("Long.")), delta),
            {"type": "system", "subtype": "compact_boundary", "compact_metadata": boundary},
            user("This session is being continued: it was long."),
            *(*answered("msg_2", text(ANSWER)), user("not part of the conversation"), result(ANSWER)),
        ]
    )
    await read(recording.query(prompt="go", transport=cli))
    own = in_order(notes)
    assert kinds(own)[1:-1] == ["model.called", "context.summarized", "model.called"]
    assert (own[1].fields["usage"].completion_tokens, own[1].fields["finish_reason"]) == (7, "length")
    summary = own[2].fields
    assert (summary["tokens_before"], summary["tokens_after"]) == (900, 90)
    assert summary["summary"] == "This session is being continued: it was long."
    assert [each["content"] for each in own[3].fields["messages"]] == [summary["summary"], ANSWER]
    assert headrace.stats.dropped == {}


@pytest.mark.parametrize(
    ("subtype", "status"),
    [
        ("error_during_execution", "failed"),
        ("error_max_turns", "turns_exhausted"),
        ("error_max_budget_usd", "budget_exhausted"),
    ],
)
async def test_a_run_that_fails(
    subtype: str, status: str, recording: Any, headrace: Headrace, notes: list[Note]
) -> None:
    import claude_agent_sdk

    said = answered("msg_1", text("API Error: 400 no such model"), error="invalid_request")
    cli = scripted_cli([*prompt("go"), *said, result(None, subtype=subtype, is_error=True, errors=["no such model"])])
    cli.failure = claude_agent_sdk.ProcessError("exit code 1", exit_code=1)
    with pytest.raises(claude_agent_sdk.ProcessError):
        await read(recording.query(prompt="go", transport=cli))
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert notes[1].fields["finish_reason"] == "error"
    assert "no such model" in notes[1].fields["error"]
    assert notes[2].fields["status"] == status
    assert "no such model" in str(notes[2].fields["error"].arguments)
    assert headrace.stats.dropped == {}


@pytest.mark.parametrize(("last", "status"), [("ResultMessage", "completed"), ("UserMessage", "aborted")])
async def test_a_program_that_stops_reading(
    last: str, status: str, recording: Any, headrace: Headrace, notes: list[Note]
) -> None:
    async with aclosing(recording.query(prompt="go", transport=scripted_cli(run()))) as messages:
        async for message in messages:
            if type(message).__name__ == last:
                break
    assert kinds(notes)[-1] == "trajectory.ended"
    assert notes[-1].fields["status"] == status
    assert sorted(note.seq or 0 for note in notes) == [*range(len(notes))]
    assert headrace.stats.dropped == {}


async def test_a_tool_in_progress_ends_with_its_run(recording: Any, headrace: Headrace, notes: list[Note]) -> None:
    async with aclosing(recording.query(prompt="go", transport=scripted_cli(run()))) as messages:
        async for message in messages:
            if fields_of(notes, "tool.called") and type(message).__name__ == "AssistantMessage":
                break
    assert kinds(in_order(notes)) == [
        *("trajectory.started", "model.called", "tool.called", "tool.returned", "trajectory.ended"),
    ]
    (ended,) = fields_of(notes, "tool.returned")
    assert (ended["call_id"], ended["status"], ended["error_class"]) == ("a44", "error", "aborted")
    assert headrace.stats.dropped == {}


async def test_another_connection_ends_the_run_of_the_first(
    recording: Any, headrace: Headrace, notes: list[Note]
) -> None:
    client = recording.client(transport=scripted_cli(run(), run("46")))
    await client.connect()
    await client.query("go")
    await read(client.receive_response())
    await client.connect()
    await client.disconnect()
    first, second = by_trajectory(notes)
    assert_run(in_order(first), "44")
    assert kinds(second) == ["trajectory.started", "trajectory.ended"]
    assert headrace.stats.dropped == {}


async def test_a_run_inside_a_trajectory_belongs_to_it(recording: Any, headrace: Headrace, notes: list[Note]) -> None:
    with headrace.trajectory(task_id="order-17", agent="shop") as trajectory:
        async for _ in recording.query(prompt="go", transport=scripted_cli(run())):
            assert headrace.current() is trajectory
        trajectory.end(answer=ANSWER)
    assert_run(in_order(notes), "44")
    assert notes[0].fields["task_id"] == "order-17"
    assert headrace.stats.dropped == {}


@pytest.mark.parametrize("where", ["options", "environment", "explicit", "none"])
async def test_a_session_is_named_in_the_address_and_nothing_is_sent(
    where: str, recording: Any, headrace: Headrace, notes: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    import claude_agent_sdk as sdk

    env = {"options": "http://gateway/", "explicit": "http://gateway/s/mine"}.get(where)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    if where == "environment":
        monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://gateway")
    options = sdk.ClaudeAgentOptions(env={"A": "b"} | ({} if env is None else {"ANTHROPIC_BASE_URL": env}))
    given: list[Any] = []
    query = sdk.query
    monkeypatch.setattr(sdk, "query", lambda **all_: given.append(all_["options"]) or query(**all_))
    with headrace.gateway_session("thread 7", trajectory_id="019-main") as session:
        lines = [*ASK, started("a"), *SUB, returned("a", "It is 44."), *answered("msg_3", text(ANSWER)), result(ANSWER)]
        await read(recording.query(prompt="go", options=options, transport=scripted_cli(lines)))
    assert notes == []
    session.feedback("accepted", 1.0)
    assert [(note.model.TYPE, note.trajectory_id) for note in notes] == [("headrace.feedback.given.v1", "019-main")]
    named = {"explicit": "http://gateway/s/mine", "none": None}.get(where, "http://gateway/s/thread%207")
    assert given[0].env == {"A": "b"} | ({} if named is None else {"ANTHROPIC_BASE_URL": named})
    assert options.env.get("ANTHROPIC_BASE_URL") == env
    assert headrace.stats.dropped == {}


async def test_a_recording_that_fails_does_not_reach_the_program(
    recording: Any, headrace: Headrace, notes: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.agents.adapters import claude_agent_sdk, claude_run

    for module, broken, count in ((claude_run, "read_request", 2), (claude_agent_sdk, "begin_run", 1)):
        monkeypatch.setattr(module, broken, None)
        before = headrace.stats.dropped.get("internal", 0)
        names = await read(recording.query(prompt="go", transport=scripted_cli(run())))
        assert names[-1] == "ResultMessage"
        async with recording.client(transport=scripted_cli(run())) as client:
            await client.query("go")
            assert (await read(client.receive_response()))[-1] == "ResultMessage"
        assert headrace.stats.dropped == {"internal": before + 2 * count}
