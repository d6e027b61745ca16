"""A request of any API → the canonical request."""

from typing import Any, assert_never

from headrace.agents.gateway.canonical import Api, CanonicalRequest
from headrace.agents.gateway.requests.blocks import record
from headrace.agents.gateway.requests.chat import read_chat, read_completion
from headrace.agents.gateway.requests.messages import read_messages
from headrace.agents.gateway.requests.responses import read_response


def read(api: Api, body: Any, *, is_compaction: bool = False) -> CanonicalRequest:
    """Read ``body``, a parsed JSON request of ``api``.

    Raises :class:`~headrace.agents.gateway.canonical.BadRequest`, which names the field, and its subclass
    ``Unsupported`` for images, audio, files and other inputs that are not recorded.
    """
    whole = record(body, "body")
    match api:
        case Api.CHAT:
            return read_chat(whole)
        case Api.COMPLETIONS:
            return read_completion(whole)
        case Api.RESPONSES:
            return read_response(whole, is_compaction=is_compaction)
        case Api.MESSAGES:
            return read_messages(whole)
        case _:
            assert_never(api)
