"""Whatever arguments the host passes, nothing raises into it, and every invalid argument is counted and logged."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from headrace.agents.encoding import HUGE, Note, encode_note
from headrace.agents.sdk import Headrace
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import EndStatus, Purpose, TrajectoryStarted
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
    lambda h, t: t.model_called("m", extra={"mine": Hostile()}),
    lambda h, t: t.model_called("m", extra=Hostile()),  # type: ignore[arg-type]
    lambda h, t: t.model_called("m", extra={7: 1}),  # type: ignore[dict-item]
    lambda h, t: h.trajectory(task_id="q", agent="a", purpose=Hostile(), role=Hostile()),  # type: ignore[arg-type]
    lambda h, t: h.trajectory(task_id="q", agent="a", task=Hostile(), group_size=Hostile()),  # type: ignore[arg-type]
    lambda h, t: t.subagent("s", task_id="q", no_such_field=Hostile()),
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


@pytest.mark.parametrize(
    ("argument", "given", "expected"),
    [
        ("purpose", "eval", "purpose: Input should be 'train' or 'evaluate'"),
        ("purpose", None, "purpose: "),
        ("role", "trained", "role: Input should be 'trainable' or 'frozen'"),
        ("role", ["frozen"], "role: "),
        ("group_size", 0, "group_size: "),
        ("group_size", "many", "group_size: "),
        ("sample_rate", 1.5, "sample_rate: "),
        ("harness_version", 3, "harness_version: "),
        ("task", "size 44", "task is of type str: expected a dict"),
        ("consents", "unrecorded", "consents is no argument here: did you mean consent?"),
        ("concent", False, "concent is no argument here: did you mean consent?"),
        ("groupid", "g1", "groupid is no argument here: did you mean group_id?"),
        ("wholly_other", 1, "wholly_other is no argument here. Fields of your own belong into extra={...}"),
        ("extra", {"consent": "unrecorded"}, "extra has consent, which the event has itself"),
        ("extra", "mine", "extra is of type str: expected a dict"),
    ],
)
def test_a_wrong_argument_is_logged_and_nothing_of_the_trajectory_is_recorded(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture, argument: str, given: Any, expected: str
) -> None:
    with headrace.trajectory(**{"task_id": "q", "agent": "a", argument: given}) as t, t.tool("search"):
        pass
    assert notes == []
    assert headrace.stats.dropped == {"bad_argument": 3}
    until(lambda: expected in caplog.text and "The trajectory is not recorded" in caplog.text)


def test_a_wrong_argument_of_a_sub_agent_is_treated_alike(headrace: Headrace, notes: list[Note]) -> None:
    with (
        headrace.trajectory(task_id="q", agent="a") as t,
        t.subagent("s", task_id="p", consents="unrecorded") as sub,
    ):
        sub.model_called("m")
    assert {note.trajectory_id for note in notes} == {t.id}
    assert headrace.stats.dropped == {"bad_argument": 2}


def test_a_sub_agent_may_have_an_id_and_fields_of_its_own(headrace: Headrace, notes: list[Note]) -> None:
    with headrace.trajectory(task_id="q", agent="a") as t:
        with t.subagent("s", task_id="p", trajectory_id="sub-1", extra={"shift": "night"}, task=None) as sub:
            pass
        with t.subagent("s", task_id="p", fork_turn=2):
            pass
    first, second = (note.fields for note in notes if note.model is TrajectoryStarted and note.trajectory_id != t.id)
    assert (sub.id, first["shift"], first["task"], second["fork_turn"]) == ("sub-1", "night", {}, 2)


@pytest.mark.parametrize("task", [{"k": 1}, None])
@pytest.mark.parametrize("purpose", ["evaluate", Purpose.EVALUATE])
def test_right_arguments_are_recorded(headrace: Headrace, notes: list[Note], task: Any, purpose: Any) -> None:
    start: dict[str, Any] = {
        "group_size": np.int64(8),
        "sample_rate": 1,
        "harness_version": "v\ud800",
        "role": "frozen",
    }
    with headrace.trajectory(task_id="q", agent="a", purpose=purpose, task=task, **start):
        pass
    payload = json.loads(encode_note(notes[0], "s", 10_000).message.value)
    assert (payload["purpose"], payload["role"], payload["group_size"]) == ("evaluate", "frozen", 8)
    assert headrace.stats.dropped == {}


def test_fields_of_the_host_s_own_are_recorded(headrace: Headrace, notes: list[Note]) -> None:
    t = headrace.trajectory(task_id="q", agent="a", extra={"shift": "night"})
    t.model_called("m", extra={"shift": "night"}, delivered=True)
    t.pruned(["c"], 2, 1, extra={"shift": "night"})
    t.summarized(2, 1, extra={"shift": "night"}, chain_index=1)
    t.snapshotted("s", extra={"shift": "night"}, provider="overlay")
    t.forked("s", 2, extra={"shift": "night"})
    t.restored("s", extra={"shift": "night"})
    t.end(extra={"shift": "night"}, error="none")
    headrace.feedback(t.id, "accepted", 1.0, extra={"shift": "night"})
    assert len(notes) == 9
    assert [json.loads(encode_note(note, "s", 10_000).message.value)["shift"] for note in notes] == ["night"] * 9


def test_an_event_with_an_unknown_argument_is_counted_and_leaves_a_gap(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture
) -> None:
    t = headrace.trajectory(task_id="q", agent="a")
    t.model_called(model="m", message=[{"role": "user"}])
    headrace.feedback(t.id, "accepted", 1.0, coment="good")
    t.end(answer="blue", outcom=1.0)
    assert [note.seq for note in notes] == [0, 2]
    assert (notes[1].fields["status"], notes[1].fields["outcome"]) == ("failed", None)
    assert "did you mean outcome?" in notes[1].fields["error"]
    assert (headrace.stats.dropped, headrace.stats.altered) == ({"bad_argument": 2}, {"end_status": 1})
    until(lambda: "did you mean messages?" in caplog.text)


def test_a_name_that_may_be_data_is_not_logged(headrace: Headrace, caplog: pytest.LogCaptureFixture) -> None:
    headrace.trajectory(task_id="q", agent="a", **{"ada@mill.example": 1})  # type: ignore[arg-type]
    until(lambda: "a name that was passed is no argument here" in caplog.text)
    assert "mill" not in caplog.text


def test_a_decorator_refuses_unknown_arguments_where_it_is_applied(headrace: Headrace) -> None:
    with pytest.raises(TypeError, match="consents is no argument here: did you mean consent"):
        headrace.traced(agent="a", consents="unrecorded")


@pytest.mark.parametrize("arguments", ["size 44", ["size"], 44])
def test_a_tool_call_whose_arguments_are_no_dict_is_not_recorded(
    headrace: Headrace, notes: list[Note], caplog: pytest.LogCaptureFixture, arguments: Any
) -> None:
    with headrace.trajectory(task_id="q", agent="a") as t, t.tool("search", arguments) as call:
        call.result = ["boots"]
    assert [note.seq for note in notes] == [0, 3]
    assert headrace.stats.dropped == {"bad_argument": 2}
    until(lambda: "arguments is of type" in caplog.text)


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
