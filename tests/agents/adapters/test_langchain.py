"""LangChain and LangGraph with the callback handler, and a scripted chat model."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from tests.agents.sdk_helpers import kinds
from tests.beside import installed

QUESTION = {"messages": [("user", "boots in 44?")]}
ASK = {"role": "user", "content": "boots in 44?"}
SAID = {"role": "assistant", "content": "We have both."}
ONE_RUN = ["model.called", "tool.called", "tool.returned", "model.called"]


@pytest.fixture(autouse=True)
def langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put LangChain behind headrace's own packages on the module path."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed(Path(__file__).parents[2] / "langchain.txt"))])
    monkeypatch.setenv("LANGSMITH_TRACING", "false")


def graph(*, fails: bool = False, asks: bool = False) -> Any:
    """An agent that searches once and answers; ``fails``: its tool raises; ``asks``: it waits for a person."""
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.prebuilt import create_react_agent
    from langgraph.types import interrupt

    class Scripted(GenericFakeChatModel):  # type: ignore[misc]
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    @tool  # type: ignore[untyped-decorator]
    def search(query: str) -> list[str]:
        """Search the shop."""
        if fails:
            raise ConnectionError("no shop")
        if asks and not interrupt("May I search?"):
            return []
        return ["boots", "sandals"]

    call = {"name": "search", "args": {"query": "44"}, "id": "call_1"}
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    about = {"model_name": "gpt-4o-2024", "finish_reason": "stop"}
    answer = AIMessage("We have both.", usage_metadata=usage, response_metadata=about)
    model = Scripted(messages=iter([AIMessage("", tool_calls=[call]), answer]))
    return create_react_agent(model, [search], checkpointer=InMemorySaver() if asks else None)


def configured(headrace: Headrace) -> dict[str, Any]:
    from headrace.agents.adapters.langchain import HeadraceCallbacks

    return {
        "callbacks": [HeadraceCallbacks(headrace, agent="checkout")],
        "configurable": {"thread_id": "thread-7"},
        "metadata": {"task_id": "order-17"},
    }


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_a_graph_s_run_is_a_trajectory(is_async: bool, headrace: Headrace, notes: list[Note]) -> None:
    if is_async:
        result = asyncio.run(graph().ainvoke(QUESTION, config=configured(headrace)))
    else:
        result = graph().invoke(QUESTION, config=configured(headrace))
    assert result["messages"][-1].content == "We have both."
    assert kinds(notes) == ["trajectory.started", *ONE_RUN, "trajectory.ended"]
    started, asked, called, returned, answered, ended = (note.fields for note in notes)
    assert (started["task_id"], started["agent"], started["session"]) == ("order-17", "checkout", "thread-7")
    assert asked["messages"][0] == ASK
    assert asked["messages"][1]["tool_calls"][0]["function"]["name"] == called["tool"] == "search"
    assert (called["call_id"], called["arguments"]) == ("call_1", {"query": "44"})
    assert returned["result"] == ["boots", "sandals"]
    assert answered["messages"] == [
        {"role": "tool", "tool_call_id": "call_1", "content": '["boots", "sandals"]'},
        SAID,
    ]
    assert (answered["model"], answered["finish_reason"]) == ("gpt-4o-2024", "stop")
    assert (answered["usage"].prompt_tokens, answered["usage"].completion_tokens) == (9, 3)
    assert (ended["answer"], headrace.stats.dropped) == ("We have both.", {})


@pytest.mark.filterwarnings("ignore")
def test_a_run_inside_a_trajectory_belongs_to_it(headrace: Headrace, notes: list[Note]) -> None:
    with headrace.trajectory(task_id="order-17", agent="checkout"):
        list(graph().stream(QUESTION, config=configured(headrace)))
    assert kinds(notes) == ["trajectory.started", *ONE_RUN, "trajectory.ended"]


@pytest.mark.filterwarnings("ignore")
def test_a_run_through_a_gateway_sends_nothing(headrace: Headrace, notes: list[Note]) -> None:
    with headrace.gateway_session("thread-7"):
        graph().invoke(QUESTION, config=configured(headrace))
    assert notes == []


@pytest.mark.filterwarnings("ignore")
def test_a_tool_that_fails_ends_its_run(headrace: Headrace, notes: list[Note]) -> None:
    with pytest.raises(ConnectionError):
        graph(fails=True).invoke(QUESTION, config=configured(headrace))
    assert kinds(notes) == ["trajectory.started", *ONE_RUN[:3], "trajectory.ended"]
    assert notes[3].fields["result"].plain() == {"error": "ConnectionError", "message": "ConnectionError: no shop"}
    assert notes[4].fields["status"] == "failed"


@pytest.mark.filterwarnings("ignore")
def test_a_tool_that_waits_for_a_person_has_not_failed(headrace: Headrace, notes: list[Note]) -> None:
    from langgraph.types import Command

    waiting = graph(asks=True)
    waiting.invoke(QUESTION, config=configured(headrace))
    assert kinds(notes) == ["trajectory.started", *ONE_RUN[:3], "trajectory.ended"]
    _, _, called, returned, ended = (note.fields for note in notes)
    assert (returned["call_id"], returned["status"], returned["error_class"]) == ("call_1", "error", "aborted")
    assert ended["status"] == "completed"
    notes.clear()
    waiting.invoke(Command(resume=True), config=configured(headrace))
    assert kinds(notes) == ["trajectory.started", *ONE_RUN[1:], "trajectory.ended"]
    started, again, returned, answered, ended = (note.fields for note in notes)
    assert (started["session"], again["call_id"], again["arguments"]) == ("thread-7", "call_1", called["arguments"])
    assert (returned["status"], returned["result"]) == ("ok", ["boots", "sandals"])
    assert answered["messages"][0] == ASK


@pytest.mark.filterwarnings("ignore")
def test_a_model_alone_is_a_trajectory_and_a_failing_one_reaches_the_caller(
    headrace: Headrace, notes: list[Note]
) -> None:
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    model = GenericFakeChatModel(messages=iter([AIMessage("We have both.")]))
    assert (
        "".join(piece.content for piece in model.stream("boots in 44?", config=configured(headrace))) == SAID["content"]
    )
    with pytest.raises(StopIteration):  # the script is at its end
        model.invoke("boots?", config=configured(headrace))
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"] * 2
    assert notes[1].fields["messages"] == [ASK, SAID]
    assert notes[4].fields["finish_reason"] == "error"
    assert notes[5].fields["status"] == "failed"


def speaker() -> Any:
    """A model that says a word, and only after a minute the next."""
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.outputs import ChatGenerationChunk

    class Speaker(GenericFakeChatModel):  # type: ignore[misc]
        has_begun: Any = None

        async def _agenerate(self, *arguments: Any, **options: Any) -> Any:
            self.has_begun.set()
            await asyncio.sleep(60)

        async def _astream(self, *arguments: Any, **options: Any) -> Any:
            for word in ("We ", "have both."):
                yield ChatGenerationChunk(message=AIMessageChunk(word))
                self.has_begun.set()
                await asyncio.sleep(60)

        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    return Speaker(messages=iter([AIMessage("We have both.")]), has_begun=asyncio.Event())


async def cancelled(work: Any, has_begun: asyncio.Event) -> None:
    running = asyncio.create_task(work)
    begun = asyncio.create_task(has_begun.wait())
    await asyncio.wait([running, begun], return_when=asyncio.FIRST_COMPLETED)
    assert begun.done(), running.result()
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["ainvoke", "astream", "messages"])
@pytest.mark.parametrize("inside", [False, True], ids=["own", "inside"])
def test_a_model_call_that_is_cancelled_is_recorded_as_far_as_it_came(
    how: str, inside: bool, headrace: Headrace, notes: list[Note]
) -> None:
    """LangChain reports no end of a call that ``ainvoke`` makes."""
    from langgraph.prebuilt import create_react_agent

    async def work(model: Any) -> None:
        agent = create_react_agent(model, [])
        if how == "ainvoke":
            await agent.ainvoke(QUESTION, config=configured(headrace))
        else:
            mode = "messages" if how == "messages" else "values"
            async for _ in agent.astream(QUESTION, config=configured(headrace), stream_mode=mode):
                pass

    async def around() -> None:
        model = speaker()
        if not inside:
            return await cancelled(work(model), model.has_begun)
        try:
            async with headrace.trajectory(task_id="order-17", agent="checkout"):
                await cancelled(work(model), model.has_begun)
                raise asyncio.CancelledError
        except asyncio.CancelledError:
            return None

    asyncio.run(around())
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    called = notes[1].fields
    said = [each["content"] for each in called["messages"] if each["role"] == "assistant"]
    assert said == (["We "] if how == "messages" else [])
    assert called["delivered"] is False or "CancelledError" in called["error"].plain()
    assert notes[-1].fields["status"] == "aborted"
    assert headrace.stats.dropped == {}


@pytest.mark.filterwarnings("ignore")
def test_a_stream_of_a_model_that_its_reader_leaves_is_recorded_as_far_as_it_was_read(
    headrace: Headrace, notes: list[Note]
) -> None:
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    model = GenericFakeChatModel(messages=iter([AIMessage("We have both.")]))
    stream = model.stream("boots in 44?", config=configured(headrace))
    next(stream), next(stream)
    stream.close()
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    called = notes[1].fields
    assert (called["messages"][-1], called["delivered"]) == ({"role": "assistant", "content": "We "}, False)
    assert "error" not in called
    assert (called["finish_reason"], notes[2].fields["status"]) == (None, "aborted")


@pytest.mark.filterwarnings("ignore")
def test_a_tool_that_is_cancelled_ends_with_its_run(headrace: Headrace, notes: list[Note]) -> None:
    from langchain_core.tools import tool

    async def work() -> None:
        has_begun = asyncio.Event()

        @tool  # type: ignore[untyped-decorator]
        async def search(query: str) -> None:
            """Search the shop."""
            has_begun.set()
            await asyncio.sleep(60)

        async def run() -> None:
            async with headrace.trajectory(task_id="order-17", agent="checkout"):
                await search.ainvoke({"query": "44"}, config=configured(headrace))

        await cancelled(run(), has_begun)

    asyncio.run(work())
    assert kinds(notes) == ["trajectory.started", "tool.called", "tool.returned", "trajectory.ended"]
    assert (notes[2].fields["status"], notes[2].fields["error_class"]) == ("error", "aborted")
    assert headrace.stats.dropped == {}
