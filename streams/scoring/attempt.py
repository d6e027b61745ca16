"""Score's state of a trajectory that waits for feedback or may get more, and its size in memory."""

from headrace.schemas.model import Part
from headrace.schemas.records.reward import Reward
from headrace.streams.rewards.spec import Feedback, Verdict

_ATTEMPT_BYTES = 1_050
_FEEDBACK_BYTES = 750
_REWARD_BYTES = 3_000


class AttemptState(Part):
    """State of one trajectory: a value of the state topic."""

    since_ms: int
    """Stream time from which it is remembered: the end of its window or, while only feedback is known, the time of the
    first feedback."""
    offset: int | None = None
    """Its offset in ``trajectories``; ``None`` while only feedback is known."""
    arrived_ms: int = 0
    """Timestamp of its record."""
    origin: str | None = None
    """``traceparent`` of its record."""
    takes_feedback: bool = False
    """Whether its spec makes revisions."""
    heard: list[Feedback] = []
    """Its feedback, in the order of the topic."""
    revisions: int = 0
    """Number of rewards decided, revision 0 included."""
    verdicts: dict[str, Verdict] = {}
    """Verdicts of judges by term: a judge is called once, and revisions reuse its verdict."""
    blank: Reward | None = None
    """Revision 0 to use if the trajectory can no longer be read when it is due; ``None`` after revision 0."""

    @property
    def is_open(self) -> bool:
        """Whether it waits for its window to end."""
        return self.offset is not None and self.revisions == 0


def memory_of(name: str, attempt: AttemptState) -> int:
    """Returns the approximate memory of ``attempt`` and its ``name`` in bytes: texts, and a constant for objects."""
    heard = sum(_FEEDBACK_BYTES + len(each.id) + len(each.signal) for each in attempt.heard)
    return _ATTEMPT_BYTES + 2 * len(name) + heard + (_REWARD_BYTES if attempt.blank else 0)
