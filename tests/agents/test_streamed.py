"""Decorated generators: their streams pass through unchanged, and are recorded."""

import asyncio
import contextvars
import gc
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.encoding import Note, encode_note
from headrace.agents.sdk import Headrace
from headrace.agents.streamed import MAX_OBJECTS, Collected, ToolRecording, record_async_generator, record_generator
from headrace.schemas.events import ToolReturned
from tests.agents.sdk_helpers import kinds

Streaming = Callable[..., Generator[Any, Any, Any]]
WORD: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="")


def payload(note: Note) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode_note(note, "s", 1 << 20).message.value)
    return found


def echo() -> Generator[Any, Any, str]:
    """Yields what it is sent and thrown, until it is sent None a second time."""
    given: Any = "first"
    while True:
        try:
            given = yield given
        except KeyError as error:
            given = f"caught {error}"
        except ValueError as error:
            raise LookupError("passed on") from error
        if given == "stop":
            return "returned"
        if given == "fail":
            raise OSError("failed")


class Nothing:
    """A recording that records nothing."""

    def resume(self) -> None: ...

    def pause(self) -> None: ...

    def add(self, item: Any) -> None: ...

    def finish(self, error: BaseException | None = None, *, is_stopped: bool = False) -> None: ...


Step = tuple[str, Any]
STEPS = st.lists(
    st.sampled_from(
        [("next", None), ("send", "a"), ("send", "stop"), ("send", "fail"), ("throw", KeyError), ("throw", ValueError),
         ("throw", ZeroDivisionError), ("throw", GeneratorExit), ("close", None)]
    ),
    max_size=6,
)  # fmt: skip


def answer(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "item", call()
    except StopIteration as end:
        return "end", end.value
    except BaseException as error:  # noqa: BLE001 - it is what the reader sees
        return type(error).__name__, (str(error), type(error.__cause__).__name__, type(error.__context__).__name__)


def steps_of(stream: Generator[Any, Any, Any], steps: list[Step]) -> list[tuple[str, Any]]:
    calls: dict[str, Callable[[Any], Any]] = {
        "next": lambda _: next(stream),
        "send": lambda value: stream.send(value),
        "throw": lambda kind: stream.throw(kind("k")),
        "close": lambda _: stream.close(),
    }
    return [answer(lambda name=name, value=value: calls[name](value)) for name, value in steps]  # type: ignore[misc]


@given(STEPS)
def test_a_reader_cannot_tell_a_recorded_generator_from_its_own(steps: list[Step]) -> None:
    recorded = record_generator(echo, lambda call: Nothing())
    assert steps_of(recorded(), steps) == steps_of(echo(), steps)


async def async_echo() -> AsyncGenerator[Any, Any]:
    given: Any = "first"
    while True:
        try:
            await asyncio.sleep(0)
            given = yield given
        except KeyError as error:
            given = f"caught {error}"
        except ValueError as error:
            raise LookupError("passed on") from error
        if given == "stop":
            return
        if given == "fail":
            raise OSError("failed")


@given(STEPS)
def test_a_reader_cannot_tell_a_recorded_async_generator_from_its_own(steps: list[Step]) -> None:
    async def answers(stream: AsyncGenerator[Any, Any]) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        for name, value in steps:
            calls: dict[str, Callable[[], Any]] = {
                "next": lambda: anext(stream),
                "send": lambda value=value: stream.asend(value),
                "throw": lambda value=value: stream.athrow(value("k")),
                "close": lambda: stream.aclose(),
            }
            try:
                found.append(("item", await calls[name]()))
            except BaseException as error:  # noqa: BLE001 - it is what the reader sees
                found.append((type(error).__name__, (str(error), type(error.__cause__).__name__)))
        await stream.aclose()
        return found

    recorded = record_async_generator(async_echo, lambda call: Nothing())
    assert asyncio.run(answers(recorded())) == asyncio.run(answers(async_echo()))


def test_decorated_generators_are_generator_functions(headrace: Headrace) -> None:
    async def words() -> AsyncIterator[str]:
        yield "a"

    for decorate in (headrace.tool(), headrace.traced(agent="a")):
        assert inspect.isgeneratorfunction(decorate(echo))
        assert inspect.isasyncgenfunction(decorate(words))
        assert decorate(echo).__name__ == "echo"


def test_a_tool_s_stream_is_joined_with_its_times(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.tool()
    def search(query: str) -> Iterator[str]:
        yield "red "
        yield "boots"

    with headrace.trajectory(task_id="q", agent="a"):
        words = search("boots")
        assert len(notes) == 1, "nothing happens before the first item is requested"
        assert next(words) == "red "
        assert kinds(notes)[1:] == ["tool.called"]
        assert list(words) == ["boots"]
    returned = payload(notes[2])
    assert (notes[1].fields["arguments"], returned["result"]) == ({"query": "boots"}, "red boots")
    stream = returned["stream"]
    assert (stream["items"], stream["kept"], stream["complete"]) == (2, 2, True)
    assert 0 <= stream["first_item_s"] <= stream["seconds"] <= returned["latency_s"]


def test_items_that_are_not_texts_are_a_list_of_what_they_were(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.tool()
    def search() -> Iterator[Any]:
        growing: list[int] = []
        for number in range(3):
            growing.append(number)
            yield growing
        yield "end"

    with headrace.trajectory(task_id="q", agent="a"):
        assert len(list(search())) == 4
    assert payload(notes[2])["result"] == [[0], [0, 1], [0, 1, 2], "end"]


@pytest.mark.parametrize("stop", ["close", "del", "break"])
def test_a_reader_that_stops_early_gets_what_it_read_recorded(headrace: Headrace, notes: list[Note], stop: str) -> None:
    cleaned = []

    @headrace.tool()
    def search() -> Iterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            cleaned.append(True)

    with headrace.trajectory(task_id="q", agent="a"):
        words = search()
        next(words)
        if stop == "close":
            words.close()  # type: ignore[attr-defined]
        del words
        gc.collect()
    returned = payload(notes[2])
    assert (returned["status"], returned["result"], returned["stream"]["complete"]) == ("ok", "a", False)
    assert cleaned == [True]


def test_a_stream_that_fails_is_a_failed_tool_call(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.tool()
    def search() -> Iterator[str]:
        yield "a"
        raise TimeoutError("slow")

    with headrace.trajectory(task_id="q", agent="a"), pytest.raises(TimeoutError):
        list(search())
    returned = payload(notes[2])
    assert (returned["status"], returned["error_class"], returned["stream"]["items"]) == ("error", "timeout", 1)
    assert returned["result"] == {"error": "TimeoutError", "message": "TimeoutError: slow"}


class Search:
    """Objects that can be called."""

    class Awaited:
        async def __call__(self, query: str) -> str:
            await asyncio.sleep(0)
            return f"about {query}"

    class Yielding:
        def __call__(self, query: str) -> Iterator[str]:
            yield from ("about ", query)

    class Streaming:
        async def __call__(self, query: str) -> AsyncIterator[str]:
            for each in ("about ", query):
                yield each


@pytest.mark.parametrize("kind", [Search.Awaited, Search.Yielding, Search.Streaming])
def test_an_object_is_recorded_as_its_call_runs(kind: type, headrace: Headrace, notes: list[Note]) -> None:
    async def read() -> str:
        called = headrace.tool("search")(kind())("rain")
        if inspect.isawaitable(called):
            return str(await called)
        return "".join([each async for each in called] if hasattr(called, "__aiter__") else called)

    with headrace.trajectory(task_id="t", agent="a"):
        assert asyncio.run(read()) == "about rain"
    returned = next(payload(note) for note in notes if note.model is ToolReturned)
    assert returned["result"] == "about rain"


def test_a_traced_stream_is_current_inside_and_not_between_items(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.traced(agent="shop")
    def answer(question: str) -> Iterator[str]:
        own = headrace.current().id
        WORD.set("set inside")
        yield own
        with headrace.trajectory(task_id="inner", agent="b") as inner:
            yield inner.id
            assert headrace.current() is inner
        assert headrace.current().id == own
        yield "end"

    with headrace.trajectory(task_id="outer", agent="a") as outer:
        seen = []
        for each in answer("boots?"):
            assert headrace.current() is outer
            assert WORD.get() == "set inside", "other variables are the generator's as in any generator"
            seen.append(each)
    ended = next(note for note in notes if note.trajectory_id == seen[0] and kinds([note]) == ["trajectory.ended"])
    assert payload(ended)["answer"] == "".join(seen)
    assert payload(ended)["stream"]["items"] == 3
    assert len(set(seen)) == 3


def test_a_traced_stream_whose_reader_stops_is_aborted(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.traced(agent="shop")
    def answer() -> Iterator[str]:
        yield "a"
        yield "b"

    words = answer()
    next(words)
    words.close()  # type: ignore[attr-defined]
    ended = payload(notes[-1])
    assert (ended["status"], ended["answer"], ended["stream"]["complete"]) == ("aborted", "a", False)


def test_a_function_that_ends_its_trajectory_decides_the_answer(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.traced(agent="shop")
    def answer() -> Iterator[str]:
        headrace.current().end(answer="mine", outcome=1.0)
        yield "theirs"

    assert list(answer()) == ["theirs"]
    assert [payload(note).get("answer") for note in notes] == [None, "mine"]
    assert headrace.stats.dropped == {}


async def test_async_streams_are_recorded(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.tool()
    async def search(query: str) -> AsyncIterator[str]:
        for word in query.split():
            await asyncio.sleep(0)
            yield word

    @headrace.traced(agent="shop")
    async def answer(question: str) -> AsyncIterator[str]:
        async for word in search(question):
            yield word.upper()

    words = answer("red boots")
    assert await anext(words) == "RED"
    assert headrace.current().id == ""
    assert [word async for word in words] == ["BOOTS"]
    assert kinds(notes) == ["trajectory.started", "tool.called", "tool.returned", "trajectory.ended"]
    assert (payload(notes[2])["result"], payload(notes[3])["answer"]) == ("redboots", "REDBOOTS")
    assert len({note.trajectory_id for note in notes}) == 1


async def test_an_async_stream_is_cleaned_up_when_its_reader_stops_or_is_cancelled(
    headrace: Headrace, notes: list[Note]
) -> None:
    cleaned = []

    @headrace.traced(agent="shop")
    async def answer() -> AsyncIterator[str]:
        try:
            yield "a"
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    words = answer()
    await anext(words)
    await words.aclose()  # type: ignore[attr-defined]
    assert (payload(notes[-1])["status"], cleaned) == ("aborted", [True])

    async def read() -> None:
        async for _ in answer():
            pass

    reader = asyncio.create_task(read())
    for _ in range(9):
        await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (payload(notes[-1])["status"], cleaned) == ("aborted", [True, True])


def test_nothing_is_advanced_by_the_sdk(headrace: Headrace, notes: list[Note]) -> None:
    advanced = []

    @headrace.tool()
    def search() -> Iterator[int]:
        for number in range(9):
            advanced.append(number)
            yield number

    with headrace.trajectory(task_id="q", agent="a"):
        numbers = search()
        assert advanced == []
        next(numbers), next(numbers)
        assert advanced == [0, 1]


@given(st.lists(st.text(max_size=9) | st.binary(max_size=9) | st.integers(), max_size=30), st.integers(0, 60))
def test_what_is_kept_is_bounded_and_leading(items: list[Any], most: int) -> None:
    collected = Collected(most)
    collected.begin()
    for item in items:
        collected.add(item)
    summary, result = collected.summary(complete=True), collected.result()
    kept = items[: summary["kept"]]
    assert sum(len(each) if isinstance(each, str | bytes) else 1 for each in kept) <= most
    assert summary["items"] == len(items)
    if all(type(each) is str for each in kept):
        assert "".join(result.texts if result else ()) == "".join(kept)
    else:
        assert result == kept


def test_a_long_stream_of_objects_is_cut() -> None:
    collected = Collected(1 << 20)
    for number in range(MAX_OBJECTS + 5):
        collected.add((number,))
    assert (len(collected.result()), collected.summary(complete=True)["items"]) == (MAX_OBJECTS, MAX_OBJECTS + 5)


def test_what_plain_functions_return_is_the_answer(headrace: Headrace, notes: list[Note]) -> None:
    @headrace.traced(agent="a")
    def answer() -> str:
        return "boots"

    assert (answer(), payload(notes[-1])["answer"], payload(notes[-1])["stream"]) == ("boots", "boots", None)


def test_recordings_have_the_same_interface() -> None:
    assert {name for name in vars(ToolRecording) if not name.startswith("_")} >= {"pause", "finish"}


def test_an_asynchronous_stream_that_its_reader_leaves_is_recorded_at_the_trajectory_s_end(
    headrace: Headrace, notes: list[Note]
) -> None:
    """Only the event loop closes it, after that end."""

    @headrace.tool()
    async def search(query: str) -> AsyncIterator[str]:
        for item in ("boots", "sandals", "shoes"):
            yield item

    @headrace.traced(agent="shop")
    async def answer() -> str:
        async for item in search("44"):
            if item == "sandals":
                break
        return item

    assert asyncio.run(answer()) == "sandals"
    assert kinds(notes) == ["trajectory.started", "tool.called", "tool.returned", "trajectory.ended"]
    returned = payload(notes[2])
    assert (returned["status"], returned["result"]) == ("ok", "bootssandals")
    assert (returned["stream"]["complete"], returned["stream"]["items"]) == (False, 2)
    assert headrace.stats.dropped == {}


def test_a_stream_that_is_read_on_after_the_trajectory_s_end_is_recorded_once(
    headrace: Headrace, notes: list[Note]
) -> None:
    @headrace.tool()
    def count() -> Iterator[int]:
        yield from range(3)

    with headrace.trajectory(task_id="q", agent="a"):
        first, second = count(), count()
        next(first), next(second)
    assert list(first) == [1, 2]
    second.close()  # type: ignore[attr-defined]
    assert [payload(note)["result"] for note in notes if note.model is ToolReturned] == [[0], [0]]
    assert kinds(notes)[-1] == "trajectory.ended"
    assert headrace.stats.dropped == {}
