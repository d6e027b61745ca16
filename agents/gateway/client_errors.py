"""What went wrong with a call → what its client is told."""

from headrace.agents.gateway.answer_parser import NotParsed
from headrace.agents.gateway.canonical import BadRequest
from headrace.agents.gateway.engine_errors import (
    EngineBroke,
    EngineError,
    EngineFailed,
    EngineRefused,
    EngineUnavailable,
)
from headrace.agents.gateway.framing.errors import ApiError, ErrorKind, kind_of_status
from headrace.agents.gateway.journal import JournalFull
from headrace.agents.gateway.prompts import UnknownModel


class CallRefused(Exception):
    """The gateway itself refuses a call."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def refused(
    kind: ErrorKind, message: str, parameter: str | None = None, retry_after_s: float | None = None
) -> CallRefused:
    """Return the exception for a call that the gateway refuses."""
    return CallRefused(ApiError(kind, message, parameter, retry_after_s))


EXPECTED = (CallRefused, BadRequest, UnknownModel, EngineError, NotParsed, JournalFull)
"""Exceptions that :func:`error_of` explains; any other is a bug."""


def error_of(error: BaseException) -> ApiError:
    """Return what a client is told about ``error``, one of :data:`EXPECTED`."""
    match error:
        case CallRefused():
            return error.error
        case BadRequest():
            return ApiError(ErrorKind.INVALID_REQUEST, str(error), error.field)
        case UnknownModel():
            return ApiError(ErrorKind.NOT_FOUND, str(error), "model")
        case EngineRefused():
            return ApiError(kind_of_status(error.status), error.message, error.parameter)
        case EngineUnavailable():
            return ApiError(ErrorKind.UNAVAILABLE, str(error), retry_after_s=error.retry_after_s)
        case EngineBroke():
            return ApiError(ErrorKind.UNAVAILABLE, str(error), retry_after_s=1.0)
        case EngineFailed():
            return ApiError(kind_of_status(error.status), error.message)
        case JournalFull():
            return ApiError(ErrorKind.UNAVAILABLE, str(error), retry_after_s=error.retry_after_s)
        case _:
            return ApiError(ErrorKind.SERVER, str(error))
