"""What the framers of all APIs have in common.

A framer makes the bytes of one answer. The caller passes deltas as they come:

    framer = ChatFramer(meta, options)
    send(framer.begin());  for each delta: send(framer.delta(delta))
    …the call is durable…
    send(framer.terminal(ends, usage))

Nothing before ``terminal`` tells the client that the answer is complete. For an answer in one piece, the caller
passes the deltas to ``framer.answer.add`` and sends ``whole``. A framer sends nothing and reads no clock.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from headrace.agents.gateway.answer import AnswerMeta, AnswerOptions, AnswerUsage, ChoiceEnd, Delta, TokenLogprob
from headrace.agents.gateway.framing.accumulate import Accumulation, Block, Piece
from headrace.agents.gateway.framing.delivered import Delivered, delivered_of
from headrace.agents.gateway.framing.errors import ApiError


class Framer(ABC):
    """Makes the bytes of one answer."""

    def __init__(self, meta: AnswerMeta, options: AnswerOptions, *, in_order: bool) -> None:
        self.meta = meta
        self.options = options
        self.answer = Accumulation(options, in_order=in_order)
        """What the client has received, and what was withheld from it."""

    def begin(self) -> bytes:
        """Return the start of a stream."""
        return b""

    @abstractmethod
    def delta(self, delta: Delta) -> bytes:
        """Return the bytes for ``delta``; empty if the client gains nothing by it. Raises ``ValueError``."""

    @abstractmethod
    def terminal(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return the end of a stream: all that tells the client that the answer is complete.

        Raises ``ValueError`` unless ``ends`` has one end for each choice.
        """

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """Return the end of a stream that failed; it can follow anything but ``terminal``."""

    @abstractmethod
    def whole(self, ends: Sequence[ChoiceEnd], usage: AnswerUsage) -> bytes:
        """Return the accumulated answer in one piece. Raises ``ValueError`` like :meth:`terminal`."""

    def ping(self) -> bytes:
        """Return a sign of life; empty if the API has none."""
        return b""

    def delivered(self, choice: int = 0) -> Delivered:
        """Return what the client has received of ``choice``."""
        return delivered_of(self.answer.choices[choice], joins_blocks=not self.answer.in_order)


class BlockFramer(Framer):
    """A framer of an API that delivers a single choice, one block after the other."""

    def __init__(self, meta: AnswerMeta, options: AnswerOptions) -> None:
        """Raises ``ValueError`` if ``options`` ask for several choices."""
        if options.choices != 1:
            raise ValueError(f"{options.choices} choices: this API has answers of one choice only")
        super().__init__(meta, options, in_order=True)
        self._open: Block | None = None

    def delta(self, delta: Delta) -> bytes:
        """Return the bytes for ``delta``; empty if the client gains nothing by it. Raises ``ValueError``."""
        return self._pieces(self.answer.add(delta))

    def _pieces(self, pieces: tuple[Piece, ...]) -> bytes:
        events: list[bytes] = []
        for block, text, logprobs in pieces:
            if block is not self._open:
                events += (self._stopped(is_cut=False), self._start(block))
                self._open = block
            if text:
                events.append(self._piece(block, text, logprobs))
        return b"".join(events)

    def _stopped(self, *, is_cut: bool) -> bytes:
        """End the open block, if there is one."""
        block, self._open = self._open, None
        return b"" if block is None else self._stop(block, is_cut=is_cut)

    @abstractmethod
    def _start(self, block: Block) -> bytes: ...

    @abstractmethod
    def _piece(self, block: Block, text: str, logprobs: tuple[TokenLogprob, ...]) -> bytes: ...

    @abstractmethod
    def _stop(self, block: Block, *, is_cut: bool) -> bytes:
        """``is_cut``: whether the answer ended before the block was complete."""
