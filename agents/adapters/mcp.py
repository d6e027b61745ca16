"""Sessions of the Model Context Protocol, whose tool calls are recorded: ``headrace.wrap(session)``.

``call_tool`` of the given session or client is replaced; everything else of it is left alone, and answers and errors
reach the program unchanged. A call belongs to the trajectory around it. Inside a tool call that the adapter of a
framework records it is the same call, and is not recorded once more.

No library is imported: sessions are known by their ``call_tool``.
"""

import functools
from collections.abc import Callable
from typing import Any

from headrace.agents.adapters.recorder import IN_TOOL, Quietly
from headrace.agents.adapters.requests import plain
from headrace.agents.trajectory import ToolCall, Trajectory
from headrace.schemas.events import ToolErrorClass

_TIMEOUTS = (-32001, 408)
"""Codes of MCP's errors for a request that timed out, of versions 2 and 1 of the library."""


def has_tools(client: object) -> bool:
    """Return whether ``client`` is a session or client of MCP."""
    return callable(getattr(client, "call_tool", None))


def record_tools(session: Any, current: Callable[[], Trajectory], quietly: Quietly) -> None:
    """Have the tool calls of ``session`` recorded in the trajectory that ``current`` returns. Doing so twice records
    once."""
    call_tool = session.call_tool
    if hasattr(call_tool, "__wrapped__"):
        return

    @functools.wraps(call_tool)
    async def recorded(name: str, arguments: dict[str, Any] | None = None, *rest: Any, **options: Any) -> Any:
        if IN_TOOL.get():
            return await call_tool(name, arguments, *rest, **options)
        call = current().tool(name, arguments).__enter__()
        inside = IN_TOOL.set(True)
        try:
            result = await call_tool(name, arguments, *rest, **options)
        except BaseException as error:
            known: BaseException | None = error
            with quietly:
                if _code_of(error) in _TIMEOUTS:
                    call.error(ToolErrorClass.TIMEOUT, str(error))
                    known = None
            call.__exit__(None if known is None else type(known), known, None)
            raise
        finally:
            IN_TOOL.reset(inside)
        with quietly:
            _note(call, result)
        call.__exit__(None, None, None)
        return result

    session.call_tool = recorded


def _code_of(error: BaseException) -> object:
    return getattr(getattr(error, "error", None), "code", None)


def _note(call: ToolCall, result: Any) -> None:
    """Note a ``CallToolResult``: its structured content, or else its texts."""
    found = plain(result)
    structured = found.get("structured_content", found.get("structuredContent"))
    blocks = [each.get("text", f"[{each.get('type')}]") for each in found.get("content") or ()]
    call.result = "\n".join(blocks) if structured is None else structured
    if found.get("is_error") or found.get("isError"):
        call.error(ToolErrorClass.ENVIRONMENT, call.result)
