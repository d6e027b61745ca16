"""The events that the SDK's calls record, without a broker."""

import asyncio
import contextvars
import threading
from array import array
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.sdk.trace import TracerProvider

from headrace.agents.encoding import Note, encode_note, traceparent
from headrace.agents.sdk import Headrace
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import ModelCalled
from tests.agents.sdk_helpers import kinds, until


def test_a_trajectory_is_numbered_from_its_start_to_its_end(headrace: Headrace, notes: list[Note]) -> None:
    with headrace.trajectory(task_id="q1", agent="shop", group_id="g", group_size=8, task={"k": 1}) as t:
        t.model_called("m", context_ids=[1, 2], sampled_ids=array("i", [3]), logprobs=[-0.5])
        with t.tool("search", {"query": "shoes"}) as call:
            call.result = ["red", "blue"]
        t.pruned(["c1"], 100, 60)
        t.summarized(60, 10, "so far …")
        t.end(answer="blue", outcome=1.0)
    names = "trajectory.started model.called tool.called tool.returned context.pruned context.summarized"
    assert kinds(notes) == [*names.split(), "trajectory.ended"]
    assert [note.seq for note in notes] == list(range(7))
    assert {note.trajectory_id for note in notes} == {t.id}
    assert notes[3].fields["result"] == ["red", "blue"]
    assert notes[2].fields["call_id"] == notes[3].fields["call_id"]


def test_a_gateway_says_which_answer_a_call_was_and_whether_it_arrived(headrace: Headrace, notes: list[Note]) -> None:
    t = headrace.trajectory(task_id="q", agent="a")
    t.model_called("m", call_id="request-1", choice=1, delivered=False)
    t.model_called("m")
    first, second = (
        ModelCalled.model_validate_json(encode_note(note, "s", 10_000).message.value) for note in notes[1:]
    )
    assert (first.call_id, first.choice, first.delivered, first.model_extra) == ("request-1", 1, False, {})
    assert (second.call_id, second.choice, second.delivered) == (None, None, None)


def test_leaving_the_with_block_ends_the_trajectory(headrace: Headrace, notes: list[Note]) -> None:
    with headrace.trajectory(task_id="q", agent="a"):
        pass
    assert notes[-1].fields["status"] == "completed"


@pytest.mark.parametrize(
    ("error", "status", "error_class"),
    [
        (ValueError("bad"), "failed", "environment"),
        (TimeoutError(), "failed", "timeout"),
        (KeyboardInterrupt(), "aborted", "aborted"),
        (asyncio.CancelledError(), "aborted", "aborted"),
    ],
)
def test_the_host_s_exception_is_recorded_and_propagates(
    headrace: Headrace, notes: list[Note], error: BaseException, status: str, error_class: str
) -> None:
    with pytest.raises(type(error)) as caught, headrace.trajectory(task_id="q", agent="a") as t, t.tool("search"):
        raise error
    assert caught.value is error
    assert notes[2].fields["error_class"] == error_class
    assert notes[2].fields["result"].plain()["error"] == type(error).__name__
    assert (notes[3].fields["status"], type(error).__name__ in notes[3].fields["error"].plain()) == (status, True)


def test_a_tool_error_that_the_agent_handles_is_recorded(headrace: Headrace, notes: list[Note]) -> None:
    from headrace.schemas.events import ToolErrorClass

    with headrace.trajectory(task_id="q", agent="a") as t, t.tool("search") as call:
        call.error(ToolErrorClass.INVALID_ARGUMENTS, "no such field")
    assert (notes[2].fields["status"], notes[2].fields["error_class"]) == ("error", "invalid_arguments")


async def test_async_code_uses_the_same_calls_and_tasks_are_separate(headrace: Headrace, notes: list[Note]) -> None:
    async def attempt(name: str) -> tuple[str, str]:
        async with headrace.trajectory(task_id=name, agent="a") as t, t.tool("search") as call:
            await asyncio.sleep(0)
            call.result = name
            return t.id, headrace.current().id

    for opened, current in await asyncio.gather(*(attempt(str(n)) for n in range(20))):
        assert opened == current
        assert [note.seq for note in notes if note.trajectory_id == opened] == [0, 1, 2, 3]


def test_a_subagent_has_its_own_trajectory_and_is_recorded_in_its_parent(headrace: Headrace, notes: list[Note]) -> None:
    with headrace.trajectory(task_id="q", agent="boss") as t:
        with t.subagent("reader", task_id="part 1", stage=2) as sub:
            assert headrace.current() is sub
            sub.model_called("m")
        assert headrace.current() is t
    started = next(note for note in notes if note.trajectory_id == sub.id)
    assert (started.fields["parent_trajectory_id"], started.fields["role"]) == (t.id, "frozen")
    own = [note for note in notes if note.trajectory_id == t.id]
    assert kinds(own) == ["trajectory.started", "subagent.started", "subagent.finished", "trajectory.ended"]
    assert (own[2].fields["steps"], own[2].fields["stage"], own[2].fields["status"]) == (1, 2, "completed")


def test_a_subagent_that_ended_itself_is_recorded_in_its_parent_as_it_ended(
    headrace: Headrace, notes: list[Note]
) -> None:
    with headrace.trajectory(task_id="q", agent="boss") as t, t.subagent("reader", task_id="part 1") as sub:
        sub.end("turns_exhausted")
    finished = next(note for note in notes if note.trajectory_id == t.id and "sub_trajectory_id" in note.fields
                    and "status" in note.fields)  # fmt: skip
    assert finished.fields["status"] == "turns_exhausted"


def test_decorated_functions_are_trajectories_and_tool_calls(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.tool()
    def search(query: str, limit: int = 3) -> list[str]:
        return [query] * limit

    @headrace.traced(agent="shop", task_id=lambda question: f"task {question}")
    def answer(question: str) -> str:
        headrace.current().model_called("m")
        return search(question, limit=2)[0]

    assert answer("shoes") == "shoes"
    assert (answer.__name__, notes[0].fields["task_id"]) == ("answer", "task shoes")
    assert notes[2].fields == {"call_id": "c1", "tool": "search", "arguments": {"query": "shoes", "limit": 2}}
    assert notes[3].fields["result"] == ["shoes", "shoes"]


def test_a_decorated_method_records_its_arguments_without_self(headrace: Headrace, notes: list[Note]) -> None:
    class Shop:
        @headrace.tool()
        def search(self, *queries: str, limit: int = 3) -> int:
            return len(queries)

    with headrace.trajectory(task_id="q", agent="a"):
        Shop().search("red", "blue", limit=1)
    assert notes[1].fields["arguments"] == {"*": ("red", "blue"), "limit": 1}


async def test_decorated_coroutines_are_awaited_inside_their_trajectory(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.tool("lookup")
    async def search(query: str) -> str:
        await asyncio.sleep(0)
        return query.upper()

    @headrace.traced(agent="shop")
    async def answer(question: str) -> str:
        return await search(question)

    assert await answer("shoes") == "SHOES"
    assert kinds(notes) == ["trajectory.started", "tool.called", "tool.returned", "trajectory.ended"]
    assert (notes[0].fields["task_id"], notes[1].fields["tool"]) == ("answer", "lookup")


def test_the_tool_decorator_needs_parentheses(headrace: Headrace) -> None:
    with pytest.raises(TypeError, match="parentheses"):
        headrace.tool(len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'write @headrace.traced\(agent="..."\)'):
        headrace.traced(len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'write @headrace.traced\(agent="..."\)'):
        headrace.traced()


@pytest.mark.parametrize("passes_context", [True, False])
def test_a_thread_is_outside_of_the_trajectory_unless_it_gets_the_context(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture, passes_context: bool
) -> None:
    @headrace.tool()
    def search(query: str) -> str:
        return query

    with headrace.trajectory(task_id="q", agent="a"), ThreadPoolExecutor(1, "finder") as pool:
        if passes_context:
            pool.submit(contextvars.copy_context().run, search, "44").result()
        else:
            pool.submit(search, "44").result()
    if passes_context:
        assert kinds(notes) == ["trajectory.started", "tool.called", "tool.returned", "trajectory.ended"]
        return
    assert headrace.stats.dropped == {"no_trajectory": 2}
    until(lambda: "of the tool 'search', open one around it" in caplog.text)
    assert "the thread 'finder_0' has not the context" in caplog.text


def test_a_dropped_event_is_logged_with_its_tool_and_what_to_do(
    headrace: Headrace, caplog: pytest.LogCaptureFixture
) -> None:
    with headrace.current().tool("search"):
        pass
    with headrace.trajectory(task_id="q", agent="a") as t:
        t.end()
        with t.tool("stock"):
            pass
    until(lambda: "'search', open one around it: with headrace.trajectory(...)" in caplog.text)
    until(lambda: "'stock', its trajectory had ended" in caplog.text)
    assert "thread" not in caplog.text


def test_later_changes_of_lists_and_dicts_are_not_recorded(headrace: Headrace, notes: list[Note]) -> None:
    messages, ids, arguments = [{"role": "user"}], [1], {"q": 1}
    with headrace.trajectory(task_id="q", agent="a") as t:
        t.model_called("m", messages=messages, context_ids=ids)
        with t.tool("search", arguments):
            messages.append({"role": "assistant"})
            ids.append(2)
            arguments["q"] = 2
    assert notes[1].fields["messages"] == [{"role": "user"}]
    assert notes[1].fields["context_ids"] == [1]
    assert notes[2].fields["arguments"] == {"q": 1}


def test_the_host_s_span_is_recorded(headrace: Headrace, notes: list[Note]) -> None:
    with TracerProvider().get_tracer("host").start_as_current_span("request") as span:
        headrace.trajectory(task_id="q", agent="a")
    headrace.trajectory(task_id="q", agent="a")
    context = span.get_span_context()
    assert (
        traceparent(notes[0].context) == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    )
    assert traceparent(notes[1].context) is None


def test_events_after_the_end_or_outside_a_trajectory_are_counted(headrace: Headrace) -> None:
    t = headrace.trajectory(task_id="q", agent="a")
    t.end()
    t.end()
    t.model_called("m")
    headrace.current().model_called("m")
    assert headrace.stats.dropped == {"after_end": 2, "no_trajectory": 1}


async def test_closing_the_generator_of_another_task_leaves_the_current_trajectory_alone(headrace: Headrace) -> None:
    async def stream() -> AsyncIterator[int]:
        with headrace.trajectory(task_id="stream", agent="a"):
            yield 1
            yield 2

    async def first(values: AsyncIterator[int]) -> None:
        await anext(values)

    values = stream()
    await asyncio.create_task(first(values))
    with headrace.trajectory(task_id="mine", agent="b") as mine:
        await values.aclose()  # type: ignore[attr-defined]
        assert headrace.current() is mine
    assert headrace.current().id == "", "none is open"


def test_blocks_may_end_in_any_order(headrace: Headrace) -> None:
    def stream() -> Iterator[Trajectory]:
        with headrace.trajectory(task_id="stream", agent="a") as t:
            yield t
            yield t

    with headrace.trajectory(task_id="outer", agent="a") as outer:
        values = stream()
        assert next(values) is headrace.current()
        with headrace.trajectory(task_id="inner", agent="a") as inner:
            values.close()  # type: ignore[attr-defined]
            assert headrace.current() is inner
        assert headrace.current() is outer, "that of the generator is over"
    assert headrace.current().id == ""


def test_threads_share_a_trajectory_without_losing_or_repeating_a_number(headrace: Headrace, notes: list[Note]) -> None:
    t = headrace.trajectory(task_id="q", agent="a")

    def call_500_times() -> None:
        for _ in range(500):
            t.model_called("m")

    threads = [threading.Thread(target=call_500_times) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(note.seq for note in notes if note.seq is not None) == list(range(2001))
