"""Errors: the form and the status of each official API."""

import json

import pytest
from anthropic.types import ErrorResponse as AnthropicErrorResponse
from openai.types.shared import ErrorObject

from headrace.agents.gateway.framing.errors import (
    MAX_MESSAGE,
    ApiError,
    ErrorKind,
    anthropic_error,
    kind_of_status,
    openai_error,
)

STATUSES = {
    ErrorKind.INVALID_REQUEST: (400, 400, "invalid_request_error"),
    ErrorKind.AUTHENTICATION: (401, 401, "authentication_error"),
    ErrorKind.PERMISSION: (403, 403, "permission_error"),
    ErrorKind.NOT_FOUND: (404, 404, "not_found_error"),
    ErrorKind.TOO_LARGE: (413, 413, "request_too_large"),
    ErrorKind.RATE_LIMIT: (429, 429, "rate_limit_error"),
    ErrorKind.SERVER: (500, 500, "api_error"),
    ErrorKind.UNAVAILABLE: (503, 529, "overloaded_error"),
}
"""Status in OpenAI's APIs, status and type in Anthropic's."""


@pytest.mark.parametrize("kind", ErrorKind)
def test_each_kind_has_the_form_and_the_status_of_its_api(kind: ErrorKind) -> None:
    openai_status, anthropic_status, anthropic_type = STATUSES[kind]
    error = ApiError(kind, "must be 1", parameter="n", retry_after_s=1.2, request_id="req_1")

    openai = openai_error(error)
    assert (openai.status, openai.headers) == (openai_status, {"retry-after": "2", "x-request-id": "req_1"})
    written = json.loads(openai.body)["error"]
    assert ErrorObject.model_validate(written, strict=True).message == "must be 1"
    assert written["param"] == "n"

    anthropic = anthropic_error(error)
    assert (anthropic.status, anthropic.headers) == (anthropic_status, {"retry-after": "2", "request-id": "req_1"})
    if kind is not ErrorKind.TOO_LARGE:  # documented, but missing in the client's types
        AnthropicErrorResponse.model_validate_json(anthropic.body)
    assert json.loads(anthropic.body) == {
        "type": "error",
        "error": {"type": anthropic_type, "message": "n: must be 1"},
        "request_id": "req_1",
    }


def test_what_is_unknown_is_no_header() -> None:
    error = ApiError(ErrorKind.SERVER, "no")
    assert (openai_error(error).headers, anthropic_error(error).headers) == ({}, {})


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.01, "1"), (30.0, "30"), (30.5, "31")])
def test_retry_after_is_rounded_up_to_whole_seconds(seconds: float, header: str) -> None:
    error = ApiError(ErrorKind.RATE_LIMIT, "wait", retry_after_s=seconds)
    assert openai_error(error).headers == {"retry-after": header}


def test_long_and_odd_messages_are_bounded_and_readable() -> None:
    body = openai_error(ApiError(ErrorKind.SERVER, "\ud83d\u2028" + "x" * 2 * MAX_MESSAGE)).body
    message = json.loads(body)["error"]["message"]
    assert len(message) == MAX_MESSAGE
    assert message.startswith("\ufffd\u2028x")
    assert message.endswith("x…")
    assert len(body.decode().splitlines()) == 1


def test_the_parameter_is_not_repeated() -> None:
    body = anthropic_error(ApiError(ErrorKind.INVALID_REQUEST, "n: must be 1", parameter="n")).body
    assert json.loads(body)["error"]["message"] == "n: must be 1"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ErrorKind.INVALID_REQUEST),
        (401, ErrorKind.SERVER),
        (403, ErrorKind.SERVER),
        (404, ErrorKind.NOT_FOUND),
        (413, ErrorKind.TOO_LARGE),
        (422, ErrorKind.INVALID_REQUEST),
        (429, ErrorKind.RATE_LIMIT),
        (500, ErrorKind.SERVER),
        (501, ErrorKind.SERVER),
        (502, ErrorKind.UNAVAILABLE),
        (503, ErrorKind.UNAVAILABLE),
        (504, ErrorKind.UNAVAILABLE),
        (529, ErrorKind.UNAVAILABLE),
    ],
)
def test_an_engines_status_has_a_kind(status: int, kind: ErrorKind) -> None:
    assert kind_of_status(status) is kind
