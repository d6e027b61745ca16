"""Spans for tests."""

import json
from pathlib import Path
from typing import Any

from headrace.agents.otel.otlp import JSON, parse_export
from headrace.agents.otel.span import Span, bounded_span

TRACE = "0af7651916cd43dd8448eb211c80319c"
RECORDED = Path(__file__).parent / "recorded"
CONVENTIONS = ("gen_ai", "openinference")


def recorded(convention: str) -> list[Span]:
    """The spans of a real instrumentation: see record_spans.py."""
    request = json.loads((RECORDED / f"{convention}.json").read_text())["request"]
    return parse_export(json.dumps(request).encode(), JSON).spans


def span(
    number: int,
    parent: int | None = None,
    start: int = 0,
    end: int = 0,
    *,
    trace: str = TRACE,
    error: str | None = None,
    is_entry: bool = False,
    service: str = "shop",
    **attributes: Any,
) -> Span:
    """A span with times in seconds; ``__`` in names of attributes stands for a dot."""
    return bounded_span(
        trace_id=trace,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        is_entry=is_entry,
        name=f"span {number}",
        start_ns=(1_700_000_000 + start) * 10**9,
        end_ns=(1_700_000_000 + end) * 10**9,
        error=error,
        service=service,
        attributes=[(name.replace("__", "."), value) for name, value in attributes.items()],
    )


def agent(number: int, parent: int | None = None, start: int = 0, end: int = 0, name: str = "a", **more: Any) -> Span:
    """A run of an agent."""
    operation = {"gen_ai__operation__name": "invoke_agent", "gen_ai__agent__name": name}
    return span(number, parent, start, end, **operation, **more)


def chat(number: int, parent: int | None = None, start: int = 0, end: int = 0, **more: Any) -> Span:
    """A model call."""
    return span(number, parent, start, end, gen_ai__operation__name="chat", gen_ai__request__model="m", **more)


def tool(number: int, parent: int | None = None, start: int = 0, end: int = 0, **more: Any) -> Span:
    """A tool call."""
    given = {"gen_ai__operation__name": "execute_tool", "gen_ai__tool__name": f"tool{number}"} | more
    return span(number, parent, start, end, **given)
