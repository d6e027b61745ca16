"""What a span says about a model call, a tool call or a run of an agent, read without trust in its attributes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import to_json

from headrace.agents.otel import names
from headrace.agents.otel.messages import (
    Messages,
    Report,
    arguments_of,
    gen_ai_messages,
    openinference_messages,
    parsed,
    system_message,
)
from headrace.agents.otel.span import Span
from headrace.schemas.bounds import MAX_COUNT, MAX_NAME
from headrace.schemas.events import ModelCalled, Sampling, Usage

MAX_VALUE_BYTES: Final = 384 * 1024
"""Largest value of an event, as JSON in bytes; a larger one is left out and labelled."""

FAILED: Final = "error"
"""Finish reason of a call that failed."""


@dataclass(frozen=True, slots=True)
class ModelSpan:
    """A model call."""

    model: str
    context: Messages
    """All messages of its request."""
    answers: Messages
    """Its answers; several if it was asked for several."""
    finish_reasons: tuple[str, ...]
    """By answer, as far as they are known."""
    usage: Usage
    sampling: Sampling
    tokens: Mapping[str, Any]
    """Fields of ``model.called`` about tokens; empty if they are not known."""


@dataclass(frozen=True, slots=True)
class ToolSpan:
    """A tool call."""

    tool: str
    call_id: str | None
    """The model's id of the call, if recorded."""
    arguments: dict[str, Any]
    result: Any


def read_model(span: Span, report: Report) -> ModelSpan:
    """Return the model call of ``span``; what is malformed is left out and reported as a label."""
    values = span.attributes
    context = system_message(values.get(names.SYSTEM_INSTRUCTIONS), report)
    context += gen_ai_messages(values.get(names.INPUT_MESSAGES), report, "user")
    answers = gen_ai_messages(values.get(names.OUTPUT_MESSAGES), report, "assistant")
    reasons = _texts(values.get(names.FINISH_REASONS)) or _reasons_in(values.get(names.OUTPUT_MESSAGES))
    if names.OPERATION not in values:
        context = openinference_messages(values, names.OI_INPUT_MESSAGES, report)
        answers = openinference_messages(values, names.OI_OUTPUT_MESSAGES, report)
        reasons = _texts(values.get(names.OI_FINISH_REASON))
    if span.error is not None:
        reasons = reasons or (FAILED,)
    model = first_text(values, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.OI_MODEL)
    usage = Usage(
        prompt_tokens=_count(values, report, names.INPUT_TOKENS, names.OI_PROMPT_TOKENS),
        completion_tokens=_count(values, report, names.OUTPUT_TOKENS, names.OI_COMPLETION_TOKENS),
    )
    return ModelSpan(
        model or "unknown", context, answers, reasons, usage, _sampling(values, report), _tokens(values, report)
    )


def read_tool(span: Span, report: Report) -> ToolSpan:
    """Return the tool call of ``span``; what is malformed is left out and reported as a label."""
    values = span.attributes
    arguments = next(
        (values[name] for name in (names.TOOL_ARGUMENTS, names.OI_INPUT, names.OI_TOOL_PARAMETERS) if name in values),
        None,
    )
    result = parsed(values.get(names.TOOL_RESULT, values.get(names.OI_OUTPUT)))
    tool = first_text(values, names.TOOL_NAME, names.OI_TOOL_NAME) or span.name.removeprefix(f"{names.TOOL_OPERATION} ")
    return ToolSpan(
        tool or "unknown",
        first_text(values, names.TOOL_CALL_ID, names.OI_TOOL_CALL_ID),
        fitting(arguments_of(arguments), report) or {},
        fitting(result, report),
    )


def fitting(value: Any, report: Report) -> Any:
    """Return ``value``, or ``None`` with a report if it is too large for an event."""
    if len(to_json(value)) <= MAX_VALUE_BYTES:
        return value
    report("value_too_large")
    return None


def first_text(values: Mapping[str, Any], *wanted: str) -> str | None:
    """Return the first of the attributes ``wanted`` that is a text, as a name; ``None`` if none is."""
    return next((each[:MAX_NAME] for name in wanted if isinstance(each := values.get(name), str) and each), None)


def _texts(value: Any) -> tuple[str, ...]:
    found = parsed(value)
    if isinstance(found, str):
        found = [found]
    return tuple(each[:MAX_NAME] for each in found if isinstance(each, str)) if isinstance(found, list) else ()


def _reasons_in(value: Any) -> tuple[str, ...]:
    found = parsed(value)
    if not isinstance(found, list):
        return ()
    return tuple(
        each["finish_reason"][:MAX_NAME]
        for each in found
        if isinstance(each, dict) and isinstance(each.get("finish_reason"), str)
    )


def _count(values: Mapping[str, Any], report: Report, *wanted: str) -> int:
    for name in wanted:
        value = values.get(name)
        if value is None:
            continue
        if type(value) in (int, float) and 0 <= value <= MAX_COUNT:
            return int(value)
        report("malformed_usage")
    return 0


def _sampling(values: Mapping[str, Any], report: Report) -> Sampling:
    given = {field: values[name] for name, field in names.SAMPLING.items() if values.get(name) is not None}
    if names.OPERATION not in values:
        invocation = parsed(values.get(names.OI_INVOCATION))
        if isinstance(invocation, dict):
            given = {field: invocation[field] for field in names.SAMPLING.values() if invocation.get(field) is not None}
        elif invocation is not None:
            report("malformed_sampling")
    mode = values.get(f"{names.OWN}logprobs_mode")
    if mode is not None:
        given["logprobs"] = mode
    sound: dict[str, Any] = {}
    for field, value in given.items():
        # Instrumentations record whole numbers as floats, too.
        whole = int(value) if isinstance(value, float) and field in _WHOLE and value.is_integer() else value
        try:
            Sampling.model_validate({field: whole})
        except ValidationError:
            report("malformed_sampling")
            # Unknown parameters make tokens untrainable; a malformed one must, too.
            sound["malformed"] = field
        else:
            sound[field] = whole
    return Sampling.model_validate(sound)


_WHOLE: Final = ("top_k", "max_tokens", "seed")


def _tokens(values: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the fields about tokens, which only ``headrace.*`` attributes give; empty unless all of them are valid."""
    found: dict[str, Any] = {
        field: parsed(values[f"{names.OWN}{field}"])
        for field in names.TOKEN_FIELDS
        if values.get(f"{names.OWN}{field}") is not None
    }
    sampled = found.get("sampled_ids")
    version = values.get(f"{names.OWN}version")
    if isinstance(sampled, list) and sampled and version is not None:
        run = values.get(f"{names.OWN}version_run")
        found["version_spans"] = [{"version": version, "start": 0, "end": len(sampled), "run": run}]
    if not found:
        return {}
    try:
        valid = ModelCalled.model_validate({"model": "", **found})
    except ValidationError:
        report("malformed_tokens")
        return {}
    return {field: getattr(valid, field) for field in found}
