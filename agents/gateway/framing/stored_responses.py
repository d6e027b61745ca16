"""Answers about stored responses of the Responses API: deletion and compaction.

``GET /v1/responses/{id}`` answers the object that
:meth:`~headrace.agents.gateway.framing.responses.ResponsesFramer.whole` returned, unchanged.
"""

from collections.abc import Sequence

from headrace.agents.gateway.answer import AnswerMeta, AnswerUsage
from headrace.agents.gateway.framing.json_bytes import encode
from headrace.agents.gateway.framing.response_object import usage_object


def deleted_body(response_id: str) -> bytes:
    """Return the answer of ``DELETE /v1/responses/{id}``."""
    return encode({"id": response_id, "object": "response", "deleted": True})


def compacted_body(meta: AnswerMeta, user_texts: Sequence[str], sealed_summary: str, usage: AnswerUsage) -> bytes:
    """Return the answer of ``POST /v1/responses/compact``: the user's messages, then one compaction item.

    Args:
        meta: The call that made the summary.
        user_texts: The user's messages that stay in the conversation.
        sealed_summary: ``encrypted_content`` of the compaction item, by which the gateway finds the summary.
        usage: Tokens of that call.
    """
    stem = meta.id.removeprefix("resp_")
    messages = [
        {
            "id": f"msg_{stem}_{position}",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        }
        for position, text in enumerate(user_texts)
    ]
    compaction = {"id": f"cmp_{stem}", "type": "compaction", "encrypted_content": sealed_summary}
    return encode(
        {
            "id": meta.id,
            "object": "response.compaction",
            "created_at": meta.created_s,
            "output": [*messages, compaction],
            "usage": usage_object(usage),
        }
    )
