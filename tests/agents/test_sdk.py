"""The SDK on the host's side, without a broker: nothing raises into the agent, nothing blocks it, every loss counts."""

import asyncio
import itertools
import os
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider

from headrace.agents import sender as sender_module
from headrace.agents.client_log import THREAD_NAME
from headrace.agents.encoding import HUGE, Note, traceparent
from headrace.agents.sdk import Headrace
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import EndStatus

NOWHERE = "127.0.0.1:9"
"""The discard port: nothing listens there, so every event stays in the queue."""


@pytest.fixture
def headrace() -> Iterator[Headrace]:
    sdk = Headrace(NOWHERE, source="test", flush_deadline_s=0)
    yield sdk
    sdk.close()


@pytest.fixture
def notes(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> list[Note]:
    """What the host's thread puts into the queue, in order."""
    seen: list[Note] = []
    monkeypatch.setattr(headrace._sender, "put", lambda fields: seen.append(Note(*fields)))
    return seen


def kinds(notes: list[Note]) -> list[str]:
    return [note.model.TYPE.removeprefix("headrace.").removesuffix(".v1") for note in notes]


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
def test_the_host_s_exception_is_noted_and_goes_on(
    headrace: Headrace, notes: list[Note], error: BaseException, status: str, error_class: str
) -> None:
    with pytest.raises(type(error)) as caught, headrace.trajectory(task_id="q", agent="a") as t, t.tool("search"):
        raise error
    assert caught.value is error
    assert notes[2].fields["error_class"] == error_class
    assert notes[2].fields["result"].plain()["error"] == type(error).__name__
    assert (notes[3].fields["status"], type(error).__name__ in notes[3].fields["error"].plain()) == (status, True)


def test_a_tool_error_that_the_agent_handles_is_noted_as_such(headrace: Headrace, notes: list[Note]) -> None:
    from headrace.schemas.events import ToolErrorClass

    with headrace.trajectory(task_id="q", agent="a") as t, t.tool("search") as call:
        call.error(ToolErrorClass.INVALID_ARGUMENTS, "no such field")
    assert (notes[2].fields["status"], notes[2].fields["error_class"]) == ("error", "invalid_arguments")


async def test_async_code_uses_the_same_calls_and_tasks_keep_apart(headrace: Headrace, notes: list[Note]) -> None:
    async def attempt(name: str) -> tuple[str, str]:
        async with headrace.trajectory(task_id=name, agent="a") as t, t.tool("search") as call:
            await asyncio.sleep(0)
            call.result = name
            return t.id, headrace.current().id

    for opened, current in await asyncio.gather(*(attempt(str(n)) for n in range(20))):
        assert opened == current
        assert [note.seq for note in notes if note.trajectory_id == opened] == [0, 1, 2, 3]


def test_a_subagent_has_a_trajectory_of_its_own_and_its_parent_knows(headrace: Headrace, notes: list[Note]) -> None:
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


def test_a_decorated_method_tells_its_arguments_and_not_its_object(headrace: Headrace, notes: list[Note]) -> None:
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


def test_generators_are_refused_when_they_are_decorated(headrace: Headrace) -> None:
    def stream() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="generator"):
        headrace.traced(agent="a")(stream)
    with pytest.raises(TypeError, match="parentheses"):
        headrace.tool(stream)  # type: ignore[arg-type]


def test_a_task_name_that_cannot_be_made_does_not_fail_the_call(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.traced(agent="a", task_id=lambda question: question["id"])
    def answer(question: Any) -> int:
        return 42

    assert answer("no dict") == 42
    assert notes[0].fields["task_id"] == "unnamed (TypeError)"


def test_lists_that_the_host_goes_on_changing_are_noted_as_they_were(headrace: Headrace, notes: list[Note]) -> None:
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


def test_the_host_s_span_is_noted(headrace: Headrace, notes: list[Note]) -> None:
    with TracerProvider().get_tracer("host").start_as_current_span("request") as span:
        headrace.trajectory(task_id="q", agent="a")
    headrace.trajectory(task_id="q", agent="a")
    context = span.get_span_context()
    assert (
        traceparent(notes[0].context) == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    )
    assert traceparent(notes[1].context) is None


def test_what_comes_after_the_end_or_outside_is_counted(headrace: Headrace) -> None:
    t = headrace.trajectory(task_id="q", agent="a")
    t.end()
    t.end()
    t.model_called("m")
    headrace.current().model_called("m")
    assert headrace.stats.dropped == {"after_end": 2, "no_trajectory": 1}


def test_a_full_queue_drops_counts_and_leaves_a_hole() -> None:
    headrace = Headrace(NOWHERE, source="test", queue_size=3, flush_deadline_s=0)
    t = headrace.trajectory(task_id="q", agent="a")
    headrace.flush(0.1)  # the thread runs, and is held: an event that it is encoding would be in neither queue
    assert headrace._sender._gate.hold(time.monotonic() + 20)
    for _ in range(5):
        t.model_called("m")
    stats = headrace.stats
    assert (stats.emitted, stats.queued, stats.sent, stats.dropped) == (6, 3, 0, {"queue_full": 3})
    headrace._sender._gate.release()
    headrace.close()
    stats = headrace.stats
    assert (stats.emitted, stats.queued, stats.dropped) == (6, 0, {"queue_full": 3, "unsent_at_close": 3})


def test_after_closing_events_are_counted_and_nothing_raises(headrace: Headrace) -> None:
    t = headrace.trajectory(task_id="q", agent="a")
    headrace.close(0)
    t.model_called("m")
    headrace.feedback("t", "accepted", 1.0)
    assert headrace.close() is True
    assert headrace.stats.dropped == {"unsent_at_close": 1, "closed": 2}


class Hostile:
    """An object whose every method fails."""

    def _no(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("hostile")

    __str__ = __repr__ = __len__ = __iter__ = __eq__ = __bool__ = __getitem__ = copy = keys = _no
    __hash__ = None  # type: ignore[assignment]


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("hostile")


def recursive() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


HOSTILE: list[Callable[[Headrace, Trajectory], object]] = [
    lambda h, t: t.model_called(Hostile()),  # type: ignore[arg-type]
    lambda h, t: t.model_called("m", context_ids="abc", logprobs=[float("nan")]),  # type: ignore[arg-type]
    lambda h, t: t.model_called("m", no_such_field=Hostile()),
    lambda h, t: t.pruned(None, -1, "x"),  # type: ignore[arg-type]
    lambda h, t: t.summarized(Hostile(), Hostile()),  # type: ignore[arg-type]
    lambda h, t: t.tool(Hostile(), Hostile()).__enter__(),  # type: ignore[arg-type]
    lambda h, t: t.tool("t", call_id=Hostile()).__enter__(),  # type: ignore[arg-type]
    lambda h, t: t.end(Hostile(), Hostile(), Hostile()),  # type: ignore[arg-type]
    lambda h, t: t.end(answer=recursive()),
    lambda h, t: h.trajectory(task_id=None, agent=Hostile(), trajectory_id=Hostile()),  # type: ignore[arg-type]
    lambda h, t: h.feedback(None, None, "much"),  # type: ignore[arg-type]
    lambda h, t: h.feedback(Hostile(), "s", 1.0),  # type: ignore[arg-type]
    lambda h, t: t.__exit__(HostileError, HostileError(), None),
]


@pytest.mark.parametrize("call", HOSTILE)
def test_nothing_that_the_host_passes_raises_into_it(
    headrace: Headrace, call: Callable[[Headrace, Trajectory], object]
) -> None:
    t = headrace.trajectory(task_id="q", agent="a")
    call(headrace, t)
    t.tool("search").__exit__(HostileError, HostileError(), None)
    headrace.flush(0.3)
    stats = headrace.stats
    assert headrace._sender.refusal is None, "the sender thread survives"
    assert stats.emitted == stats.sent + stats.queued + sum(stats.dropped.values())


def test_what_is_no_event_is_counted_with_its_reason(headrace: Headrace, caplog: pytest.LogCaptureFixture) -> None:
    t = headrace.trajectory(task_id="q", agent="a")
    t.pruned(["a"], -1, 0)
    t.pruned(["a"], -1, 0)
    with t.tool("read") as call:
        call.result = "x" * 2_000_000
    headrace.flush(0.3)
    assert headrace.stats.dropped == {"invalid": 2, "oversize": 1}
    until(lambda: "(oversize)" in caplog.text)
    assert sum("(invalid)" in record.getMessage() for record in caplog.records) == 1, "logged once, then only counted"


@pytest.mark.parametrize(
    ("given", "kept"), [("order-17", "order-17"), (7, "7"), (UUID(int=7), str(UUID(int=7))), ("näher", "näher")]
)
def test_numbers_that_are_identifiers_become_text_and_the_log_says_so(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture, given: Any, kept: str
) -> None:
    t = headrace.trajectory(task_id=given, agent=given, group_id=given, trajectory_id=given)
    headrace.feedback(given, given, 1.0)
    started, feedback = notes
    assert [started.fields[name] for name in ("task_id", "agent", "group_id")] == [kept] * 3
    assert (t.id, started.trajectory_id, feedback.trajectory_id, feedback.fields["signal"]) == (kept,) * 4
    altered = headrace.stats.altered.get("identifier", 0)
    assert altered == (0 if isinstance(given, str) else 6)
    until(lambda: ("task_id is of type" in caplog.text) == bool(altered))


@pytest.mark.parametrize("given", [None, "", "x" * 513, 2**64, True, 1.5, b"t", ["t"], object(), "\ud800"])
@pytest.mark.parametrize("argument", ["task_id", "agent", "group_id", "trajectory_id", "parent_trajectory_id"])
def test_what_identifies_nothing_is_named_at_the_call_and_nothing_is_recorded_under_another_name(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture, argument: str, given: Any
) -> None:
    if given is None and argument not in ("task_id", "agent"):
        pytest.skip("may be left out")
    with headrace.trajectory(**({"task_id": "q", "agent": "a"} | {argument: given})) as t, t.tool("search"):
        pass
    assert notes == []
    assert headrace.stats.dropped == {"bad_identifier": 3}
    until(lambda: argument in caplog.text and "expected a str" in caplog.text)


@pytest.mark.parametrize(("about", "signal"), [(None, "s"), ("", "s"), (object(), "s"), ("t", None), ("t", "")])
def test_feedback_about_nothing_is_not_sent(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture, about: Any, signal: Any
) -> None:
    headrace.feedback(about, signal, 1.0)
    assert (notes, headrace.stats.dropped) == ([], {"bad_identifier": 1})
    until(lambda: ("trajectory_id" if signal == "s" else "signal") in caplog.text)


def test_a_trajectory_ends_with_a_status_or_its_text(headrace: Headrace, notes: list[Note]) -> None:
    headrace.trajectory(task_id="q", agent="a").end("budget_exhausted", answer=1)
    headrace.trajectory(task_id="q", agent="a").end(EndStatus.ABORTED)
    assert [notes[1].fields["status"], notes[3].fields["status"]] == ["budget_exhausted", "aborted"]


@pytest.mark.parametrize("status", ["completd", "", None, 3, object()])
def test_a_status_that_does_not_exist_ends_the_trajectory_as_failed_and_says_why(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture, status: Any
) -> None:
    headrace.trajectory(task_id="q", agent="a").end(status, answer="blue")
    fields = notes[1].fields
    assert (fields["status"], fields["answer"]) == ("failed", "blue")
    assert "expected one of completed, budget_exhausted" in fields["error"]
    until(lambda: fields["error"] in caplog.text)
    assert headrace.stats.altered == {"end_status": 1}


@pytest.mark.parametrize("make", [lambda: list(range(1024 * 512 + 1)), lambda: dict.fromkeys(range(1024 * 205))])
def test_what_no_event_has_room_for_is_not_even_copied(
    headrace: Headrace, notes: list[Note], make: Callable[[], Any]
) -> None:
    with headrace.trajectory(task_id="q", agent="a") as t, t.tool("read") as call:
        call.result = make()
    assert notes[2].fields["result"] is HUGE


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


def test_blocks_may_be_left_in_any_order(headrace: Headrace) -> None:
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


class NamelessType(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit("the host's code ran")


class Nameless(metaclass=NamelessType):
    def __call__(self, number: int) -> int:
        return number + 1


def test_a_class_that_does_not_tell_its_name_stops_nothing(headrace: Headrace, notes: list[Note]) -> None:
    odd: Any = Nameless()
    with headrace.trajectory(task_id="q", agent="a") as t:
        with t.tool("x", call_id=odd):
            pass
        assert headrace.tool()(odd)(1) == 2
        t.end(odd)
    assert headrace.trajectory(task_id=odd, agent="a").id
    headrace.feedback(odd, "s", 1.0)
    assert headrace.stats.dropped == {"bad_identifier": 2}
    assert notes[-1].fields["status"] == "failed"


@pytest.mark.parametrize("function", [max, int, dict.get, np.dot])
def test_functions_that_do_not_tell_their_arguments_can_be_tools(
    headrace: Headrace, notes: list[Note], function: Any
) -> None:
    arguments: tuple[Any, ...] = ({"a": 1}, "a") if function is dict.get else (3,) if function is int else (3, 4)
    with headrace.trajectory(task_id="q", agent="a"):
        found = headrace.tool()(function)(*arguments)
    assert (found, notes[2].fields["result"]) == (function(*arguments),) * 2
    if function is max:
        assert (notes[1].fields["tool"], notes[1].fields["arguments"]) == ("max", {"*": (3, 4)})


def test_a_host_keeps_the_generator_that_its_tool_returned(headrace: Headrace) -> None:
    def numbers() -> Iterator[int]:
        yield from range(1_000)

    @headrace.tool()
    def search(query: str) -> Iterator[int]:
        return numbers()

    with headrace.trajectory(task_id="q", agent="a") as t:
        found = search("shoes")
        with t.tool("count") as call:
            call.result = {"endless": itertools.count()}
        first = next(found)
        headrace.flush(0.3)
    assert [first, *found] == list(range(1_000))
    assert headrace.stats.altered == {"unserialisable": 2}
    assert headrace.stats.dropped == {}


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


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"bootstrap": "nowhere"}, "bootstrap"),
        ({"bootstrap": "a:1,b"}, "bootstrap"),
        ({"source": ""}, "source"),
        ({"queue_size": 0}, "queue_size"),
        ({"max_event_bytes": 0}, "max_event_bytes"),
        ({"stats_interval_s": 0.0}, "stats_interval_s"),
    ],
)
def test_settings_that_cannot_work_are_named_at_construction(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Headrace(**{"bootstrap": NOWHERE, "source": "test"} | settings)


def test_the_address_comes_from_the_environment_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_KAFKA", raising=False)
    with pytest.raises(ValueError, match=r"no Kafka address.*HEADRACE_KAFKA"):
        Headrace(source="test")
    monkeypatch.setenv("HEADRACE_KAFKA", "broker-1:9092, broker-2:9092")
    Headrace(source="test").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_starts_afresh_and_leaves_the_parent_s_trajectories_alone(headrace: Headrace) -> None:
    inherited = headrace.trajectory(task_id="q", agent="a")
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        inherited.model_called("m")
        headrace.trajectory(task_id="q2", agent="a")
        headrace.flush(0.1)
        os.write(write, headrace.stats.model_dump_json().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b'"emitted":2,"sent":0,"queued":1,"dropped":{"forked":1}' in os.read(read, 1000)
    assert headrace.stats.dropped == {}


def test_a_worker_of_celery_closes_the_sdk_before_it_ends(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes end with ``os._exit``. Celery's signal stands in for Celery, which is no dependency."""
    receivers: list[Callable[..., object]] = []
    signal = SimpleNamespace(connect=lambda receiver, weak: receivers.append(receiver))
    monkeypatch.setitem(sys.modules, "celery.signals", SimpleNamespace(worker_process_shutdown=signal))
    headrace.trajectory(task_id="q", agent="a")
    for receiver in receivers:
        receiver(signal=signal, sender="worker@host", pid=os.getpid(), exitcode=0)
    headrace.trajectory(task_id="q", agent="a")
    assert headrace.stats.dropped == {"unsent_at_close": 1, "closed": 1}


def test_a_thread_that_cannot_be_started_is_tried_again_and_its_events_wait(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, threads_left = threading.Thread.start, False

    def start_if_any_are_left(thread: threading.Thread) -> None:
        if not threads_left:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_any_are_left)
    monkeypatch.setattr(sender_module, "START_AGAIN_S", 0.05)
    t = headrace.trajectory(task_id="q", agent="a")
    t.model_called("m")
    assert headrace.flush(0.1) is False
    assert (headrace.stats.emitted, headrace.stats.queued, headrace.stats.dropped) == (2, 2, {}), "once, as queued"
    threads_left = True
    time.sleep(0.06)
    t.model_called("m")
    headrace.flush(0.3)
    assert headrace._sender._taken == 3, "all that waited was taken on"
    assert (headrace.stats.emitted, headrace.stats.queued, headrace.stats.dropped) == (3, 3, {})
    until(lambda: "cannot be started (RuntimeError: can't start new thread)" in caplog.text)


def test_two_threads_that_note_the_first_event_at_once_start_one_sender(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = headrace._sender
    monkeypatch.setattr(sender_module, "START_AGAIN_S", 0.0)
    for _ in range(3):
        sender._start()
    assert headrace.flush(5)
    until(lambda: sum(thread.name == THREAD_NAME for thread in sender_threads(sender)) == 1)


def sender_threads(sender: sender_module.Sender) -> list[threading.Thread]:
    """Those that serve ``sender``."""
    return [each for each in threading.enumerate() if getattr(each, "_target", None) == sender._run]


def until(condition: Callable[[], bool]) -> None:
    """The SDK writes its log lines on another thread: wait for what it says, with a bound only against hanging."""
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()
