"""Cursor Tab's reward: a suggestion pays off only if its acceptance probability exceeds p*.

    accepted 1 − p*, rejected −p*, not shown 0        expected reward at acceptance probability p: p − p*

The only production reward published with numbers: p* = 0.25, so +0.75 and −0.25. User actions arrive as feedback with
the signals ``shown``, ``accepted`` and ``rejected``; a value above 0 means yes.
"""

from collections.abc import Sequence
from enum import StrEnum

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.spec import Feedback, RewardSpec, Term

THRESHOLD = 0.25
"""p*: acceptance probability at which showing and not showing have the same expected reward."""
WINDOW_MS = 10 * 60 * 1000
"""Milliseconds for which a suggestion waits for its user; headrace's choice."""


class Decision(StrEnum):
    """The user's decision on a suggestion."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    NOT_SHOWN = "not_shown"


def decision(feedback: Sequence[Feedback]) -> Decision:
    """Returns the user's decision from feedback in the order of the topic; the last decision counts.

    A suggestion that was shown and never answered is rejected; so is one that was "accepted" with value 0.
    """
    found = Decision.NOT_SHOWN
    for given in feedback:
        if given.signal == "accepted":
            found = Decision.ACCEPTED if given.value > 0 else Decision.REJECTED
        elif given.value > 0 and (
            given.signal == "rejected" or (given.signal == "shown" and found is Decision.NOT_SHOWN)
        ):
            found = Decision.REJECTED
    return found


def tab_reward(decided: Decision, threshold: float = THRESHOLD) -> float:
    """Returns 1 − p* if accepted, −p* if rejected, 0 if not shown; in [−p*, 1 − p*]."""
    match decided:
        case Decision.ACCEPTED:
            return 1 - threshold
        case Decision.REJECTED:
            return -threshold
        case Decision.NOT_SHOWN:
            return 0.0


def tab(*, version: int, threshold: float = THRESHOLD, window_ms: int = WINDOW_MS, name: str = "tab") -> RewardSpec:
    """Returns the reward with another threshold in (0, 1), or another window."""
    if not 0 < threshold < 1:
        raise ValueError(f"threshold is {threshold}: it is a probability above 0 and below 1")

    def accepted(trajectory: Trajectory, feedback: Sequence[Feedback]) -> float:
        """The user's decision on the suggestion: 1 − p*, −p* or 0."""
        return tab_reward(decision(feedback), threshold)

    terms = (Term("accepted", accepted, 1.0),)
    return RewardSpec(
        name, version, terms, maximum=1 - threshold, minimum=-threshold, feedback_window_ms=window_ms
    )  # fmt: skip


TAB = tab(version=1)
"""``tab@1``: as published, p* = 0.25."""
