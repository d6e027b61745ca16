"""A logger for LiteLLM.

    litellm.callbacks.append(HeadraceLogger(headrace, agent="checkout"))

``completion`` and ``acompletion`` of any provider are recorded as a wrapped client's calls are: in the trajectory
around them, or in one for each conversation. LiteLLM reports most answers where the call is made, but streams after
their end, in a task or thread of its own: a stream has its place among the trajectory's events from its start, and may
be recorded after the trajectory's end. A stream that is not read to its end is not reported, and its place remains a
gap. Late, too, come synchronous answers in forms that are not OpenAI's or Anthropic's: they have their place from when
the program gets them. A call that is cancelled is never reported, nor recorded.

Where the program keeps messages from LiteLLM's loggers (``turn_off_message_logging``), calls are recorded without them.

Inside ``headrace.gateway_session`` the logger names the session in asynchronous calls; LiteLLM lets nobody change a
synchronous one, which needs ``extra_headers=session.headers``.

Needs the extra ``litellm``. Nothing is consumed or changed.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import from_json

from headrace.agents.adapters.gateway_session import session_headers
from headrace.agents.adapters.recorder import Host, RecordedCall
from headrace.agents.adapters.requests import ReadAnswer, plain, read_answer
from headrace.agents.adapters.runs import MAX_OPEN, library_of
from headrace.agents.gateway.canonical import Api
from headrace.agents.trajectory import CURRENT

with library_of("litellm"):
    import litellm
    from litellm.integrations.custom_logger import CustomLogger

_CALLS = ("completion", "acompletion")
"""Functions whose calls are recorded."""

_PROVIDER = "llm_provider-"
"""What LiteLLM puts before the names of a provider's headers."""


class HeadraceLogger(CustomLogger):  # type: ignore[misc]  # the library may be absent where types are checked
    """Records calls. One logger serves any number of calls, also at the same time."""

    def __init__(self, headrace: Host, *, agent: str = "litellm", record_tools: bool = True) -> None:
        """``agent``: of trajectories that are opened for calls outside of any. ``record_tools``: whether tool calls are
        recorded from the conversation; ``False`` if the program records them itself."""
        super().__init__()
        self._recorder = headrace.recorder(agent=agent, record_tools=record_tools)
        self._quietly = self._recorder.quietly
        self._lock = threading.Lock()
        self._open: OrderedDict[str, RecordedCall] = OrderedDict()
        """Calls without an answer, by LiteLLM's id."""

    # Before a call.

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """Name the session of the capture gateway."""
        with self._quietly:
            named = session_headers(CURRENT.get())
            given = kwargs.get("extra_headers") or {}
            if named and getattr(call_type, "value", call_type) in _CALLS:
                return {**kwargs, "extra_headers": named | given}
        return None

    def log_pre_api_call(self, model: str, messages: Any, kwargs: dict[str, Any]) -> None:
        """Note a call."""
        with self._quietly:
            if kwargs.get("call_type") not in _CALLS:
                return
            is_stream = bool((kwargs.get("optional_params") or {}).get("stream") or kwargs.get("stream"))
            body = {"model": model, "stream": is_stream} | ({} if _hides_messages(kwargs) else {"messages": messages})
            call = self._recorder.call(Api.CHAT, body, may_be_late=True)
            if call is not None:
                with self._lock:
                    self._open[kwargs["litellm_call_id"]] = call
                    if len(self._open) > MAX_OPEN:
                        self._open.popitem(last=False)

    # Where the call is made.

    def log_post_api_call(self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Record a synchronous answer, if its form is known; else it has its place, and is reported on a thread."""
        with self._quietly:
            if kwargs.get("call_type") != "completion" or kwargs.get("acompletion"):
                return
            body = _json(kwargs.get("original_response"))
            if (api := _api_of(body)) is not None:
                self._answered(kwargs, api, body, kwargs.get("response_headers"))
            elif (call := self._open.get(kwargs.get("litellm_call_id", ""))) is not None:
                call.is_reported_later()

    async def async_post_call_success_deployment_hook(
        self, request_data: dict[str, Any], response: Any, call_type: Any
    ) -> None:
        """Record an asynchronous answer."""
        with self._quietly:
            self._answered(request_data, Api.CHAT, plain(response), _headers_of(response))

    # Where LiteLLM likes.

    def log_success_event(self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Record an answer that was reported nowhere else."""
        with self._quietly:
            self._answered(kwargs, Api.CHAT, plain(response_obj), _headers_of(response_obj))

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Record an answer that was reported nowhere else."""
        self.log_success_event(kwargs, response_obj, start_time, end_time)

    def log_failure_event(self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Record a call that failed."""
        with self._quietly:
            found = self._take(kwargs)
            error = kwargs.get("exception")
            if found is not None and isinstance(error, BaseException):
                found.failed(error)

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Record a call that failed."""
        self.log_failure_event(kwargs, response_obj, start_time, end_time)

    def _take(self, kwargs: Mapping[str, Any]) -> RecordedCall | None:
        """Return a call that is not recorded yet."""
        with self._lock:
            return self._open.pop(kwargs.get("litellm_call_id", ""), None)

    def _answered(self, kwargs: Mapping[str, Any], api: Api, body: Any, headers: Any) -> None:
        if not isinstance(body, dict) or (call := self._take(kwargs)) is None:
            return
        is_hidden = not call.has_messages

        def read() -> ReadAnswer:
            answer = read_answer(api, body)
            return replace(answer, message=None) if is_hidden else answer

        call.answered(headers if isinstance(headers, Mapping) else {}, read)


def _hides_messages(kwargs: Mapping[str, Any]) -> bool:
    """Return whether loggers are not to see messages: of this call, or of all."""
    of_call = (kwargs.get("standard_callback_dynamic_params") or {}).get("turn_off_message_logging")
    return bool(litellm.turn_off_message_logging if of_call is None else of_call)


def _json(text: Any) -> Any:
    try:
        return from_json(text) if isinstance(text, str) else text
    except ValueError:
        return None


def _api_of(body: Any) -> Api | None:
    """Return whose answer it is."""
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("choices"), list):
        return Api.CHAT
    return Api.MESSAGES if isinstance(body.get("content"), list) and "stop_reason" in body else None


def _headers_of(response: Any) -> dict[str, str]:
    """Return the provider's headers."""
    found = (getattr(response, "_hidden_params", None) or {}).get("additional_headers") or {}
    return {name.removeprefix(_PROVIDER): value for name, value in found.items() if name.startswith(_PROVIDER)}
