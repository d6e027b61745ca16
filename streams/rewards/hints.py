"""Hints for turns: what a spec says would have helped, as tokens, for the trainer's hint distillation.

    SPEC = RewardSpec("coder", 1, (passed,), hints=tool_error_hints(tokenizer.encode("Read the tool's schema first.")))

The function of a spec gets the trajectory and returns its hints. It does no I/O: token ids are made where the spec is
defined. What it returns beyond the bounds is refused with a label and counted in the reward, never silently dropped.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from headrace.schemas.records.reward import MAX_HINTS, Hint, HintRefusal
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.interruptions import INTERRUPTIONS

logger = logging.getLogger(__name__)

HintFunction: TypeAlias = Callable[[Trajectory], Sequence[Hint]]
"""Returns hints for turns of a trajectory. Must be pure: a replay gives the same hints."""

_reported: set[str] = set()


def hints_of(function: HintFunction, trajectory: Trajectory, *, spec: str) -> tuple[list[Hint], dict[str, int]]:
    """Returns the hints of ``function`` that may be recorded, each with the trajectory's tenant, and the number of
    others by reason. If it raises, there are none, and its first traceback is logged for ``spec``."""
    try:
        given = list(function(trajectory))
    except (MemoryError, *INTERRUPTIONS):
        raise
    except BaseException:  # a user's function may end as a program does
        if spec not in _reported:
            _reported.add(spec)
            logger.exception("reward %s: its hints raised; such trajectories have none", spec)
        return [], {HintRefusal.RAISED.value: 1}
    tenant = trajectory.started.tenant if trajectory.started else None
    kept: dict[int, Hint] = {}
    refused: Counter[str] = Counter()
    for hint in given:
        if hint.turn >= len(trajectory.turns):
            refused[HintRefusal.OUT_OF_RANGE.value] += 1
        elif hint.tenant not in (None, tenant):
            refused[HintRefusal.OTHER_TENANT.value] += 1
        elif hint.turn in kept:
            refused[HintRefusal.REPEATED.value] += 1
        elif len(kept) == MAX_HINTS:
            refused[HintRefusal.TOO_MANY.value] += 1
        else:
            kept[hint.turn] = hint.model_copy(update={"tenant": tenant})
    return list(kept.values()), dict(refused)
