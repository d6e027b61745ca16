"""A model that follows a script of tool calls, behind OpenAI's Chat Completions."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.agents.retrieval.endpoint_server import endpoint

Call = tuple[str, dict[str, Any]]
Message = dict[str, Any]


def said(*calls: Call, content: str | None = None, number: int = 0) -> Message:
    """A message of a model with these calls of tools."""
    tool_calls = [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(arguments)},
        }
        for place, (tool, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


@asynccontextmanager
async def scripted_model(*script: Sequence[Call]) -> AsyncIterator[tuple[str, list[Any]]]:
    """A model that makes the calls of ``script``, message by message, and then calls nothing; gives its address with
    ``/v1``, and what it was asked."""

    def answer(path: str, body: Any) -> Any:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        message = said(*script[turn], number=turn) if turn < len(script) else said(content="I am done.")
        return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}

    async with model(answer) as found:
        yield found


@asynccontextmanager
async def model(answer: Callable[[str, Any], Any]) -> AsyncIterator[tuple[str, list[Any]]]:
    """A model that answers as ``answer`` says."""
    async with endpoint(answer) as (_, url, asked):
        yield f"{url}/v1", asked


def results_in(messages: Sequence[Message]) -> list[str]:
    """Results of tools in a context."""
    return [message["content"] for message in messages if message["role"] == "tool"]
