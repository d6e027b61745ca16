"""What a client is told about everything that can go wrong."""

import pytest

from headrace.agents.gateway.answer_parser import NotParsed
from headrace.agents.gateway.canonical import BadRequest, Unsupported
from headrace.agents.gateway.client_errors import EXPECTED, error_of, refused
from headrace.agents.gateway.engine_errors import (
    EngineAnswerInvalid,
    EngineBroke,
    EngineFailed,
    EngineRefused,
    EngineUnavailable,
)
from headrace.agents.gateway.framing.errors import ErrorKind
from headrace.agents.gateway.journal import JournalFull
from headrace.agents.gateway.prompts import UnknownModel


@pytest.mark.parametrize(
    ("error", "kind", "parameter", "retry_after_s", "says"),
    [
        (refused(ErrorKind.RATE_LIMIT, "slower", "n", 3.0), ErrorKind.RATE_LIMIT, "n", 3.0, "slower"),
        (BadRequest("input[3]", "is odd"), ErrorKind.INVALID_REQUEST, "input[3]", None, "input[3]: is odd"),
        (Unsupported("x", "no images"), ErrorKind.INVALID_REQUEST, "x", None, "no images"),
        (UnknownModel("gpt", ["policy"]), ErrorKind.NOT_FOUND, "model", None, "use one of policy"),
        (EngineRefused("e", 400, "too long", "B", "messages"), ErrorKind.INVALID_REQUEST, "messages", None, "too long"),
        (EngineRefused("e", 404, "no model"), ErrorKind.NOT_FOUND, None, None, "no model"),
        (EngineRefused("e", 422, "odd"), ErrorKind.INVALID_REQUEST, None, None, "odd"),
        (EngineUnavailable("e", "is away", 7.0), ErrorKind.UNAVAILABLE, None, 7.0, "the engine at e is away"),
        (EngineBroke("e", "broke off"), ErrorKind.UNAVAILABLE, None, 1.0, "broke off"),
        (EngineFailed("e", 500, "CUDA error"), ErrorKind.SERVER, None, None, "CUDA error"),
        (EngineFailed("e", 401, "its key"), ErrorKind.SERVER, None, None, "its key"),
        (EngineAnswerInvalid("e", "sent nonsense"), ErrorKind.SERVER, None, None, "sent nonsense"),
        (NotParsed("the parser failed"), ErrorKind.SERVER, None, None, "the parser failed"),
        (JournalFull(), ErrorKind.UNAVAILABLE, None, 5.0, "enlarge spool_bytes"),
    ],
)
def test_every_expected_error_is_explained(
    error: Exception, kind: ErrorKind, parameter: str | None, retry_after_s: float | None, says: str
) -> None:
    assert isinstance(error, EXPECTED)
    told = error_of(error)
    assert (told.kind, told.parameter, told.retry_after_s) == (kind, parameter, retry_after_s)
    assert says in told.message
