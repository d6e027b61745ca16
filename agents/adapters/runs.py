"""Runs of an agent framework, as an adapter follows them.

A run from outside is a trajectory of its own, which ends with it; a run inside a trajectory belongs to that one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.agents.adapters.recorder import Host
from headrace.agents.raised import Raised
from headrace.agents.trajectory import Trajectory, is_abort
from headrace.schemas.events import EndStatus

MAX_OPEN = 10_000
"""Runs, spans and calls in progress that an adapter remembers, the latest. Libraries report the end of each, unless
their process is killed."""


@dataclass(slots=True)
class Run:
    """A run in progress."""

    trajectory: Trajectory
    is_own: bool = False
    """Whether the trajectory was opened for the run, and ends with it."""

    def end(self, error: BaseException | None = None, answer: Any = None) -> None:
        """End the trajectory if it is the run's own. ``error``: what ended the run."""
        if not self.is_own:
            return
        if error is None:
            self.trajectory.end(answer=answer)
        else:
            status = EndStatus.ABORTED if is_abort(error) else EndStatus.FAILED
            self.trajectory.end(status, error=Raised.of(error))


def begin_run(host: Host, around: Trajectory | None, *, task_id: Any, agent: str, session: Any = None) -> Run:
    """Begin a run in the trajectory ``around`` it, or in one of its own. ``session``: the framework's name of the
    conversation, which the start of its own trajectory keeps."""
    if around is not None:
        return Run(around)
    named = None if session is None else {"session": session}
    return Run(host.trajectory(task_id=task_id, agent=agent, extra=named), is_own=True)


@contextmanager
def library_of(extra: str) -> Iterator[None]:
    """A ``with`` block around an adapter's imports of its library; raises ``ImportError`` with the name of the extra
    that has it."""
    try:
        yield
    except ImportError as error:
        needs = f"this adapter needs headrace's extra {extra}: {install_command(extra)}"
        raise ImportError(f"{error}: {needs}", name=error.name) from error


def install_command(extra: str) -> str:
    """Return how to install an extra of headrace, which no package index has."""
    return f"pip install 'PATH[{extra}]', with the absolute path of headrace's checkout or wheel"
