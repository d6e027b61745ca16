"""A session whose calls go through the capture gateway, which records them.

The gateway numbers the events of its trajectories, so nobody else may write numbered events into them. Model calls,
tool calls, sub-agents and ends that are reported inside a session therefore send nothing: the gateway has them from
the conversation. What a session adds is its name, which the adapters send with every call, and feedback, which has no
number.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from headrace.agents.consent import UNRECORDED
from headrace.agents.counters import DropReason
from headrace.agents.gateway.session_identity import MAX_SESSION
from headrace.agents.sender import Sender
from headrace.agents.trajectory import Trajectory, UnrecordedTrajectory

SESSION_HEADER = "x-session-id"
PARENT_HEADER = "x-parent-session-id"
TRAJECTORY_HEADER = "x-headrace-trajectory"
ANSWER_SESSION_HEADER = "x-headrace-session"
OUTCOME_HEADER = "x-headrace-outcome"

_NOT_THE_MAIN_ONE = frozenset({"side", "subagent"})
"""Outcomes of requests whose trajectory is not that of the session."""

OUTSIDE_SESSION = (
    "model calls inside a trajectory went through the gateway, which records them in a trajectory of its own, so this "
    "one has no model calls and its outcome is not theirs: use `with headrace.gateway_session(...)` instead of a "
    "trajectory, and report the outcome to the gateway (POST /sessions/{session}/end)"
)
"""Logged once if calls reach a gateway inside a trajectory that is not a session."""


UNKNOWN_TRAJECTORY = (
    "feedback on a session whose trajectory is not known, because no wrapped client or logger has seen an answer of "
    "the gateway in it: open the session at the gateway (POST /sessions) and pass its trajectory_id to gateway_session"
)
"""Cause of dropped feedback, for the log."""


class GatewaySession(UnrecordedTrajectory):
    """A session: use it in a ``with`` around the calls that belong to it."""

    __slots__ = ("_feedback", "trajectory_id")

    def __init__(
        self, sender: Sender, session_id: str, feedback: Callable[..., None], trajectory_id: str | None = None
    ) -> None:
        super().__init__(sender, UNRECORDED + session_id)
        self._feedback = feedback
        self.trajectory_id = trajectory_id
        """The gateway's trajectory; ``None`` before the first answer, and if nobody sees the answers' headers."""

    @property
    def session_id(self) -> str:
        """Name of the session."""
        return session_name(self)

    @property
    def headers(self) -> dict[str, str]:
        """Headers that name the session, for calls that no adapter changes."""
        return session_headers(self)

    def feedback(self, signal: str, value: float, **fields: Any) -> None:
        """Send feedback on the gateway's trajectory, as :meth:`headrace.agents.sdk.Headrace.feedback` does. Before the
        first answer there is none: the feedback is dropped (``no_trajectory``)."""
        if self.trajectory_id is None:
            self._sender.counters.drop(DropReason.NO_TRAJECTORY, UNKNOWN_TRAJECTORY)
        else:
            self._feedback(self.trajectory_id, signal, value, **fields)


def is_session_name(text: str) -> bool:
    """Return whether a header can name a session by ``text``."""
    return 0 < len(text) <= MAX_SESSION and text.isascii() and text.isprintable()


def session_name(trajectory: Trajectory) -> str:
    """Return the session that stands for a trajectory."""
    return trajectory.id.removeprefix(UNRECORDED)


def session_headers(trajectory: Trajectory | None) -> dict[str, str]:
    """Return the headers of a call inside ``trajectory``: those of its gateway session, or none outside of one.

    A sub-agent of a session is a session of its own with that one as its parent.
    """
    outer = trajectory
    while outer is not None and not isinstance(outer, GatewaySession):
        outer = outer._outer
    if trajectory is None or outer is None:
        return {}
    name = session_name(trajectory)
    if not is_session_name(name):
        return {}
    own = {SESSION_HEADER: name}
    return own if outer is trajectory else own | {PARENT_HEADER: outer.session_id}


def is_from_gateway(headers: Mapping[str, str], trajectory: Trajectory | None) -> bool:
    """Return whether an answer with these headers came through a gateway. Its trajectory is noted in ``trajectory`` if
    that is a session; if it is another recorded one, a warning is logged."""
    if headers.get(ANSWER_SESSION_HEADER) is None:
        return False
    if trajectory is not None and not isinstance(trajectory, UnrecordedTrajectory):
        trajectory._sender.counters.log_once(logging.WARNING, OUTSIDE_SESSION)
    is_main = headers.get(OUTCOME_HEADER) not in _NOT_THE_MAIN_ONE
    if isinstance(trajectory, GatewaySession) and trajectory.trajectory_id is None and is_main:
        trajectory.trajectory_id = headers.get(TRAJECTORY_HEADER)
    return True
