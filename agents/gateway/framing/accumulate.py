"""Deltas → the answer that the client has received, block by block; every framer and every whole answer uses this.

    TextDelta "Let me", TextDelta " look.", ToolStart bash, ToolArguments "{}"
    → [TEXT "Let me look.", TOOL bash "{}"]

What the client does not receive is not part of the answer:

- empty deltas;
- with ``parallel_tool_calls=false``, every tool call but the first one, which is counted;
- a second start of a call, and arguments of a call that never started, which are counted.

Messages and Responses deliver one block after the other (``in_order``). There, text that comes while a call is open is
held back until the call ends, because more arguments may follow, and arguments of a call that has ended are not
delivered, but counted. Chat Completions addresses calls by index and needs neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.agents.gateway.answer import (
    AnswerOptions,
    ChoiceEnd,
    Delta,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolArguments,
    ToolStart,
)
from headrace.agents.gateway.framing.json_bytes import well_formed


class BlockKind(StrEnum):
    """What a block holds."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"


@dataclass(slots=True)
class Block:
    """Consecutive deltas of one kind: a text, a reasoning, or a tool call."""

    kind: BlockKind
    position: int
    """Position among the blocks of its choice."""
    call: int = 0
    """Position among the tool calls of its choice."""
    call_id: str = ""
    """Id of the tool call."""
    name: str = ""
    """Name of the tool."""
    pieces: list[str] = field(default_factory=list)
    """The text, or the arguments, in pieces."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities that were delivered with the pieces."""

    @property
    def text(self) -> str:
        """The text, or the arguments."""
        return "".join(self.pieces)


Piece = tuple[Block, str, tuple[TokenLogprob, ...]]
"""A block, what it gained (empty where a call or an empty text starts), and the log-probabilities to be delivered with
it."""


@dataclass(slots=True)
class ChoiceAnswer:
    """What the client has received of one choice."""

    blocks: list[Block] = field(default_factory=list)
    calls: dict[int, Block | None] = field(default_factory=dict)
    """Tool calls by the parser's number; ``None`` for those that are withheld."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """All log-probabilities, in order."""
    pending: tuple[TokenLogprob, ...] = ()
    """Log-probabilities that wait for the next piece."""
    held: list[str] = field(default_factory=list)
    """Text that waits for the end of the open call; not yet received."""

    def tool_calls(self) -> list[Block]:
        """Return the tool calls in the order of their starts."""
        return [block for block in self.blocks if block.kind is BlockKind.TOOL]

    def joined(self, kind: BlockKind) -> str:
        """Return the text of all blocks of ``kind``."""
        return "".join(block.text for block in self.blocks if block.kind is kind)

    def take_pending(self) -> tuple[TokenLogprob, ...]:
        """Return the log-probabilities that no piece has taken, and forget them."""
        pending, self.pending = self.pending, ()
        return pending

    def gain(self, block: Block, text: str) -> Piece:
        """Append ``text`` to ``block``."""
        if text:
            block.pieces.append(text)
        if not self.pending:
            return (block, text, ())
        block.logprobs += self.pending
        return (block, text, self.take_pending())


class Accumulation:
    """The answer so far: a fold over deltas."""

    def __init__(self, options: AnswerOptions, *, in_order: bool) -> None:
        """``in_order``: whether blocks are delivered strictly one after the other."""
        self.choices = [ChoiceAnswer() for _ in range(options.choices)]
        self.in_order = in_order
        self.withheld_calls = 0
        """Tool calls that were not delivered."""
        self.withheld_arguments = 0
        """Pieces of arguments that were not delivered, of calls that had ended or never started."""
        self._only_first_call = not options.parallel_tool_calls

    def add(self, delta: Delta) -> tuple[Piece, ...]:
        """Fold ``delta`` in and return what the client gains by it.

        Raises:
            ValueError: If there is no such choice.
        """
        number = delta.choice
        if not 0 <= number < len(self.choices):
            raise ValueError(f"a delta of choice {number}: the answer has {len(self.choices)}")
        choice = self.choices[number]
        # Most deltas continue a text: its case comes first.
        if isinstance(delta, TextDelta):
            return self._write(choice, BlockKind.TEXT, delta.text)
        if isinstance(delta, ToolArguments):
            return self._write_arguments(choice, delta)
        if isinstance(delta, ReasoningDelta):
            return self._write(choice, BlockKind.REASONING, delta.text)
        if isinstance(delta, ToolStart):
            return self._start_call(choice, delta)
        choice.logprobs += delta.tokens
        choice.pending += delta.tokens
        return ()

    def release(self) -> tuple[Piece, ...]:
        """Return the pieces that were held back, now that no delta follows."""
        return tuple(piece for choice in self.choices for piece in self._released(choice))

    def open_empty_text(self, number: int) -> Piece:
        """Open a text block in the choice ``number`` and return what the client gains: a block without text."""
        choice = self.choices[number]
        return choice.gain(_opened(choice, BlockKind.TEXT), "")

    def in_choice_order(self, ends: Sequence[ChoiceEnd]) -> list[ChoiceEnd]:
        """Return ``ends`` by choice.

        Raises:
            ValueError: Unless there is one end for each choice.
        """
        ordered = sorted(ends, key=lambda end: end.choice)
        if [end.choice for end in ordered] != list(range(len(self.choices))):
            raise ValueError(
                f"ends of the choices {[end.choice for end in ordered]}: expected one for each of {len(self.choices)}"
            )
        return ordered

    def _write(self, choice: ChoiceAnswer, kind: BlockKind, text: str) -> tuple[Piece, ...]:
        if not text:
            return ()
        text = well_formed(text)
        last = choice.blocks[-1] if choice.blocks else None
        if last is not None and last.kind is kind:
            return (choice.gain(last, text),)
        if self.in_order and kind is BlockKind.TEXT and last is not None and last.kind is BlockKind.TOOL:
            choice.held.append(text)
            return ()
        released = self._released(choice)
        return (*released, choice.gain(_opened(choice, kind), text))

    def _start_call(self, choice: ChoiceAnswer, delta: ToolStart) -> tuple[Piece, ...]:
        if delta.index in choice.calls:
            self.withheld_calls += 1
            return ()
        if self._only_first_call and choice.calls:
            choice.calls[delta.index] = None
            self.withheld_calls += 1
            return ()
        released = self._released(choice)
        block = _opened(choice, BlockKind.TOOL)
        block.call, block.call_id, block.name = len(choice.calls), well_formed(delta.id), well_formed(delta.name)
        choice.calls[delta.index] = block
        return (*released, choice.gain(block, ""))

    def _write_arguments(self, choice: ChoiceAnswer, delta: ToolArguments) -> tuple[Piece, ...]:
        if not delta.text:
            return ()
        block = choice.calls.get(delta.index)
        if block is None or (self.in_order and block is not choice.blocks[-1]):
            was_counted_as_call = block is None and delta.index in choice.calls
            self.withheld_arguments += not was_counted_as_call
            return ()
        return (choice.gain(block, well_formed(delta.text)),)

    @staticmethod
    def _released(choice: ChoiceAnswer) -> tuple[Piece, ...]:
        if not choice.held:
            return ()
        text = "".join(choice.held)
        choice.held.clear()
        return (choice.gain(_opened(choice, BlockKind.TEXT), text),)


def _opened(choice: ChoiceAnswer, kind: BlockKind) -> Block:
    block = Block(kind, len(choice.blocks))
    choice.blocks.append(block)
    return block
