"""What a client has received of an answer, to be recognised when the client sends it back.

    Delivered(texts=("Let me look.",), calls=(DeliveredCall("call_AUjC…", "bash", '{"command":"ls"}'),))

The next request of a well-behaved client contains exactly this: the texts as one string (Chat Completions) or as one
block each (Messages, Responses), and each call with its id, name and arguments.
"""

from dataclasses import dataclass

from headrace.agents.gateway.framing.accumulate import BlockKind, ChoiceAnswer


@dataclass(frozen=True, slots=True)
class DeliveredCall:
    """A tool call that the client has received."""

    call_id: str
    name: str
    arguments: str
    """Text of the arguments as the client received it; JSON if the call was complete."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The answer of one choice."""

    texts: tuple[str, ...] = ()
    """Blocks of text, none of them empty."""
    reasoning: tuple[str, ...] = ()
    """Blocks of reasoning, none of them empty."""
    calls: tuple[DeliveredCall, ...] = ()
    """Tool calls in the order of their starts."""
    echoed: tuple[str, ...] = ()
    """What the client sends back unread beside them: signatures, encrypted content; one for each reasoning block."""


def delivered_of(choice: ChoiceAnswer, *, joins_blocks: bool, echoed: str = "") -> Delivered:
    """Return what the client has received of ``choice``.

    Args:
        choice: The accumulated answer.
        joins_blocks: Whether the API has only one text and one reasoning per answer.
        echoed: What the API delivers with each reasoning block.
    """
    texts = tuple(block.text for block in choice.blocks if block.kind is BlockKind.TEXT and block.pieces)
    reasoning = tuple(block.text for block in choice.blocks if block.kind is BlockKind.REASONING)
    return Delivered(
        texts=("".join(texts),) if joins_blocks and texts else texts,
        reasoning=("".join(reasoning),) if joins_blocks and reasoning else reasoning,
        calls=tuple(DeliveredCall(call.call_id, call.name, call.text) for call in choice.tool_calls()),
        echoed=(echoed,) * len(reasoning) if echoed else (),
    )
