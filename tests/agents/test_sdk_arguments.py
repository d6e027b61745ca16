"""Whatever arguments the host passes, nothing raises into it, and every invalid argument is counted and logged."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from headrace.agents.encoding import HUGE, Note
from headrace.agents.sdk import Headrace
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import EndStatus
from tests.agents.sdk_helpers import until


def test_an_error_while_naming_the_task_does_not_fail_the_call(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.traced(agent="a", task_id=lambda question: question["id"])
    def answer(question: Any) -> int:
        return 42

    assert answer("no dict") == 42
    assert notes[0].fields["task_id"] == "unnamed (TypeError)"


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
def test_no_arguments_raise_into_the_host(headrace: Headrace, call: Callable[[Headrace, Trajectory], object]) -> None:
    t = headrace.trajectory(task_id="q", agent="a")
    call(headrace, t)
    t.tool("search").__exit__(HostileError, HostileError(), None)
    headrace.flush(0.3)
    stats = headrace.stats
    assert headrace._sender.refusal is None, "the sender thread survives"
    assert stats.emitted == stats.sent + stats.queued + sum(stats.dropped.values())


def test_invalid_events_are_counted_by_reason(headrace: Headrace, caplog: pytest.LogCaptureFixture) -> None:
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
def test_numbers_as_identifiers_become_text_and_are_logged(
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


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        (argument, given)
        for argument in ("task_id", "agent", "group_id", "trajectory_id", "parent_trajectory_id")
        for given in (None, "", "x" * 513, 2**64, True, 1.5, b"t", ["t"], object(), "\ud800")
        if given is not None or argument in ("task_id", "agent")  # the others may be left out
    ],
)
def test_an_invalid_identifier_is_logged_and_nothing_is_recorded(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture, argument: str, given: Any
) -> None:
    with headrace.trajectory(**({"task_id": "q", "agent": "a"} | {argument: given})) as t, t.tool("search"):
        pass
    assert notes == []
    assert headrace.stats.dropped == {"bad_identifier": 3}
    until(lambda: argument in caplog.text and "expected a str" in caplog.text)


@pytest.mark.parametrize(("about", "signal"), [(None, "s"), ("", "s"), (object(), "s"), ("t", None), ("t", "")])
def test_feedback_without_trajectory_or_signal_is_not_sent(
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
def test_an_unknown_status_ends_the_trajectory_as_failed_with_an_explanation(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture, status: Any
) -> None:
    headrace.trajectory(task_id="q", agent="a").end(status, answer="blue")
    fields = notes[1].fields
    assert (fields["status"], fields["answer"]) == ("failed", "blue")
    assert "expected one of completed, budget_exhausted" in fields["error"]
    until(lambda: fields["error"] in caplog.text)
    assert headrace.stats.altered == {"end_status": 1}


@pytest.mark.parametrize("make", [lambda: list(range(1024 * 512 + 1)), lambda: dict.fromkeys(range(1024 * 205))])
def test_values_larger_than_any_event_are_not_copied(
    headrace: Headrace, notes: list[Note], make: Callable[[], Any]
) -> None:
    with headrace.trajectory(task_id="q", agent="a") as t, t.tool("read") as call:
        call.result = make()
    assert notes[2].fields["result"] is HUGE


class NamelessType(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit("the host's code ran")


class Nameless(metaclass=NamelessType):
    def __call__(self, number: int) -> int:
        return number + 1


def test_a_class_whose_name_raises_is_harmless(headrace: Headrace, notes: list[Note]) -> None:
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
def test_functions_without_a_signature_can_be_tools(headrace: Headrace, notes: list[Note], function: Any) -> None:
    arguments: tuple[Any, ...] = ({"a": 1}, "a") if function is dict.get else (3,) if function is int else (3, 4)
    with headrace.trajectory(task_id="q", agent="a"):
        found = headrace.tool()(function)(*arguments)
    assert (found, notes[2].fields["result"]) == (function(*arguments),) * 2
    if function is max:
        assert (notes[1].fields["tool"], notes[1].fields["arguments"]) == ("max", {"*": (3, 4)})


def test_a_generator_returned_by_a_tool_is_not_consumed(headrace: Headrace) -> None:
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
