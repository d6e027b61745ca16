"""What can go wrong between the gateway and an engine.

Each error names the engine by its address, without secrets. Whether a request may go to another engine follows from
the type: only :class:`EngineUnavailable` before the first byte has gone to the client.
"""

from http import HTTPStatus

import msgspec

from headrace.schemas.redaction import redacted

REMEDY = "Start vLLM there, or set HEADRACE_VLLM (gateway.engines) to where it is"
"""What an operator can do about an engine that does not answer."""

MAX_MESSAGE = 2_000
"""Longest text of an engine in an error, in characters."""


class EngineError(RuntimeError):
    """A call of an engine failed."""

    def __init__(self, engine: str | None, problem: str) -> None:
        """``engine``: its address, redacted; ``None`` if it is about all engines. ``problem``: what follows "the engine
        at … ", or a whole sentence."""
        super().__init__(problem if engine is None else f"the engine at {engine} {problem}")
        self.engine = engine


class EngineUnavailable(EngineError):
    """No connection, no answer within the time limit, or the engine says that it cannot serve now.

    Nothing of an answer was received, so another engine may be asked.
    """

    def __init__(self, engine: str | None, problem: str, retry_after_s: float = 1.0) -> None:
        super().__init__(engine, problem)
        self.retry_after_s = retry_after_s
        """Seconds after which the client may try again."""


class EngineRefused(EngineError):
    """The engine refuses the request: the context is too long, the grammar is invalid, the model is unknown."""

    def __init__(
        self, engine: str, status: int, message: str, kind: str = "BadRequestError", parameter: str | None = None
    ) -> None:
        super().__init__(engine, f"refused the request ({status}): {message}")
        self.status = status
        """HTTP status, from 400 to 499."""
        self.message = message
        """The engine's own words, which pass through to the client."""
        self.kind = kind
        """The engine's type of the error."""
        self.parameter = parameter
        """Field of the request that is at fault, if the engine names one."""


class EngineFailed(EngineError):
    """The engine reports an error of its own, or it does not serve the gateway at all."""

    def __init__(self, engine: str, status: int, message: str) -> None:
        super().__init__(engine, f"failed ({status}): {message}")
        self.status = status
        """HTTP status of the engine's answer."""
        self.message = message
        """The engine's own words."""


class EngineBroke(EngineError):
    """An answer ended before all of its choices did: the connection was lost, or the engine stopped."""


class EngineAnswerInvalid(EngineError):
    """An answer cannot be used: it is not what the engine's API promises, or its parts contradict one another."""


class _ErrorInfo(msgspec.Struct):
    message: str
    type: str = "BadRequestError"
    param: str | None = None
    code: int | str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorInfo


_NOT_ADMITTED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_error_body = msgspec.json.Decoder(_ErrorBody)
_UNAVAILABLE = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


def error_of(engine: str, status: int, body: bytes, retry_after_s: float = 1.0) -> EngineError:
    """Return the error that an HTTP answer of ``engine`` with a ``status`` other than 200 stands for.

    A gateway that the engine does not admit, and an endpoint that it lacks, are failures and no fault of the client.
    ``body`` is vLLM's ``{"error": {"message", "type", "param", "code"}}``, or any text of a proxy.
    """
    try:
        info, is_its_own = _error_body.decode(body).error, True
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        info, is_its_own = _ErrorInfo(body[:MAX_MESSAGE].decode("utf-8", "replace")), False
    message = redacted(info.message[:MAX_MESSAGE])
    if status in _UNAVAILABLE:
        return EngineUnavailable(engine, f"cannot serve now ({status}): {message}", retry_after_s)
    if status in _NOT_ADMITTED:
        return EngineFailed(engine, status, f"it does not accept the gateway's key: {message}")
    if status == HTTPStatus.NOT_FOUND and not is_its_own:
        return EngineFailed(engine, status, f"it lacks the endpoint: start vLLM with --enable-scale-out. {message}")
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return EngineRefused(engine, status, message, info.type, info.param)
    return EngineFailed(engine, status, message)


def error_in_stream(engine: str, message: str, kind: str, parameter: str | None, code: object) -> EngineError:
    """Return the error that an engine reports within a stream; ``code`` is the HTTP status that it would have had."""
    status = code if isinstance(code, int) else HTTPStatus.INTERNAL_SERVER_ERROR
    text = redacted(message[:MAX_MESSAGE])
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return EngineRefused(engine, status, text, kind, parameter)
    return EngineFailed(engine, status, text)
