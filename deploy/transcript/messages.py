"""The text of a message in OpenAI's format. Pure.

{"role": "assistant", "content": "Done.", "tool_calls": [{…}]} → "Done. {…}"
"""

from collections.abc import Mapping
from typing import Any

from headrace.schemas.records.trajectory import Trajectory


def message_text(message: Mapping[str, Any]) -> str:
    """Returns the text of a message, with its tool calls; empty if it has neither."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part["text"] if isinstance(part, dict) and "text" in part else part for part in parts]
    calls = message.get("tool_calls")
    return " ".join(str(text) for text in [*texts, *(calls if isinstance(calls, list) else ())] if text is not None)


def has_messages(trajectory: Trajectory) -> bool:
    """Whether each turn that sampled tokens has its messages, which then say what the tokens do."""
    sampling = [turn for turn in trajectory.turns if turn.sampled_tokens]
    return bool(sampling) and all(turn.messages for turn in sampling)
