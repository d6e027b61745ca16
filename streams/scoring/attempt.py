"""What score keeps of a trajectory that waits for feedback or may get more, and how much memory it takes."""

from headrace.schemas.model import Part
from headrace.schemas.records.reward import Reward
from headrace.streams.rewards.spec import Feedback, Verdict

_ATTEMPT_BYTES = 1_050
_FEEDBACK_BYTES = 750
_REWARD_BYTES = 3_000


class Attempt(Part):
    """What is known of a trajectory: the state's value."""

    since_ms: int
    """Log time from which it is remembered: the end of its window or, while it is unknown, its first feedback."""
    offset: int | None = None
    """Where it stands in ``trajectories``; ``None`` while only feedback is known."""
    arrived_ms: int = 0
    """Timestamp of its record."""
    origin: str | None = None
    """``traceparent`` of its record."""
    takes_feedback: bool = False
    """Whether its spec makes revisions."""
    heard: list[Feedback] = []
    """Its feedback, in the order of the log."""
    revisions: int = 0
    """Rewards that were decided, revision 0 included."""
    verdicts: dict[str, Verdict] = {}
    """What judges said, by term: a judge is asked once, and revisions rest on the same verdict."""
    blank: Reward | None = None
    """Revision 0 as it is where the trajectory can no longer be read; until that is due."""

    @property
    def is_open(self) -> bool:
        """Whether it waits for its window to end."""
        return self.offset is not None and self.revisions == 0


def memory_of(name: str, attempt: Attempt) -> int:
    """Memory of ``attempt`` and its ``name``, in bytes, about: texts as they are, and some for the objects around."""
    heard = sum(_FEEDBACK_BYTES + len(each.id) + len(each.signal) for each in attempt.heard)
    return _ATTEMPT_BYTES + 2 * len(name) + heard + (_REWARD_BYTES if attempt.blank else 0)
