"""Errors in the form of each API, with the status that the official API has for them.

    ApiError(ErrorKind.RATE_LIMIT, "12 requests a minute", retry_after_s=4.2)
    → OpenAI's APIs: 429 {"error":{"message":…,"type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}
    → Messages API:  429 {"type":"error","error":{"type":"rate_limit_error","message":…},"request_id":…}

Differences from vLLM 0.32: vLLM's ``type`` is the name of a Python class and its ``code`` is the status as a number,
which OpenAI's clients read as a string; its Messages API answers ``internal_error``, which Anthropic's does not know.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.agents.gateway.framing.json_bytes import encode

MAX_MESSAGE = 4_096
"""Longest message of an error, in characters; longer ones are cut."""


class ErrorKind(StrEnum):
    """What went wrong, apart from any API."""

    INVALID_REQUEST = "invalid_request"
    AUTHENTICATION = "authentication"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    RATE_LIMIT = "rate_limit"
    SERVER = "server"
    UNAVAILABLE = "unavailable"
    """For now: the engine is away or the spool is full. A client should repeat the request."""


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error for a client."""

    kind: ErrorKind
    message: str
    """What is wrong and what to do about it."""
    parameter: str | None = None
    """Path of the request's field that is wrong: ``messages[3].content[1]``."""
    retry_after_s: float | None = None
    """After how many seconds the request may succeed, if that is known."""
    request_id: str | None = None
    """Id of the request, for the client's logs."""


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


_OPENAI: dict[ErrorKind, tuple[int, str, str | None]] = {
    ErrorKind.INVALID_REQUEST: (400, "invalid_request_error", None),
    ErrorKind.AUTHENTICATION: (401, "invalid_request_error", "invalid_api_key"),
    ErrorKind.PERMISSION: (403, "permission_error", "permission_denied"),
    ErrorKind.NOT_FOUND: (404, "invalid_request_error", "not_found"),
    ErrorKind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    ErrorKind.RATE_LIMIT: (429, "rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.SERVER: (500, "server_error", "server_error"),
    ErrorKind.UNAVAILABLE: (503, "server_error", "service_unavailable"),
}
"""Kind → status, ``type`` and ``code``."""

_ANTHROPIC: dict[ErrorKind, tuple[int, str]] = {
    ErrorKind.INVALID_REQUEST: (400, "invalid_request_error"),
    ErrorKind.AUTHENTICATION: (401, "authentication_error"),
    ErrorKind.PERMISSION: (403, "permission_error"),
    ErrorKind.NOT_FOUND: (404, "not_found_error"),
    ErrorKind.TOO_LARGE: (413, "request_too_large"),
    ErrorKind.RATE_LIMIT: (429, "rate_limit_error"),
    ErrorKind.SERVER: (500, "api_error"),
    # Anthropic's API has no 503; its clients repeat a request after 529.
    ErrorKind.UNAVAILABLE: (529, "overloaded_error"),
}
"""Kind → status and ``type``."""

_BY_STATUS = {
    **{status: kind for kind, (status, *_) in _OPENAI.items()},
    **{status: kind for kind, (status, _) in _ANTHROPIC.items()},
}


def kind_of_status(status: int) -> ErrorKind:
    """Return the kind of an engine's HTTP error ``status`` (400 to 599)."""
    kind = _BY_STATUS.get(status)
    if kind in (ErrorKind.AUTHENTICATION, ErrorKind.PERMISSION):
        return ErrorKind.SERVER  # the engine refused the gateway's own credentials: the client cannot help it
    if kind is not None:
        return kind
    if status in (502, 504):
        return ErrorKind.UNAVAILABLE
    return ErrorKind.INVALID_REQUEST if 400 <= status < 500 else ErrorKind.SERVER


def openai_error(error: ApiError) -> ErrorResponse:
    """Return ``error`` as Chat Completions, Completions, Responses and models answer it."""
    headers = _headers(error)
    if error.request_id is not None:
        headers["x-request-id"] = error.request_id
    return ErrorResponse(_OPENAI[error.kind][0], headers, encode(openai_object(error)))


def openai_object(error: ApiError) -> dict[str, Any]:
    """Return the JSON object of ``error`` in OpenAI's APIs."""
    _, kind, code = _OPENAI[error.kind]
    return {"error": {"message": message_of(error), "type": kind, "param": error.parameter, "code": code}}


def anthropic_error(error: ApiError) -> ErrorResponse:
    """Return ``error`` as the Messages API answers it."""
    headers = _headers(error)
    if error.request_id is not None:
        headers["request-id"] = error.request_id
    return ErrorResponse(_ANTHROPIC[error.kind][0], headers, encode(anthropic_object(error)))


def anthropic_object(error: ApiError) -> dict[str, Any]:
    """Return the JSON object of ``error`` in the Messages API, which names the parameter only in the message."""
    message = message_of(error)
    if error.parameter is not None and not message.startswith(error.parameter):
        message = f"{error.parameter}: {message}"
    kind = _ANTHROPIC[error.kind][1]
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": error.request_id}


def message_of(error: ApiError) -> str:
    """Return the message, cut to :data:`MAX_MESSAGE`."""
    return error.message if len(error.message) <= MAX_MESSAGE else error.message[: MAX_MESSAGE - 1] + "…"


def _headers(error: ApiError) -> dict[str, str]:
    if error.retry_after_s is None:
        return {}
    return {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
