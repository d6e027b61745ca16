"""Hints of a batch: which of its tokens each hint is for. Pure.

    sequence   p p p A A o o B B        turn B sampled the last two tokens
    hint       h h, gap 1               goes before the last context token:  p p p A A o h h o B B

Axis legend: H hints, K tokens of all hints, N sampled tokens of the batch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from headrace.schemas.records.reward import Hint, HintRefusal
from headrace.schemas.records.trajectory import Trajectory
from headrace.trainer.batches.packing import Ints, PackedSequences

REFUSALS = tuple(HintRefusal)
"""Reasons in the order of ``TurnHints.refused``."""


@dataclass(frozen=True, eq=False, slots=True)
class TurnHints:
    """The hints of a batch, in its order, as flat arrays."""

    token_ids: Ints
    """(K,) tokens of all hints."""
    cu_hints: Ints
    """(H + 1,) hint h occupies ``[cu_hints[h], cu_hints[h + 1])``."""
    firsts: Ints
    """(H,) index on the N axis of the first token that the hinted turn sampled."""
    lasts: Ints
    """(H,) one past the index of its last."""
    gaps: Ints
    """(H,) context tokens between hint and turn."""
    refused: Ints
    """Number of refused hints by reason, as in :data:`REFUSALS`."""

    def __len__(self) -> int:
        return len(self.firsts)

    def arrays(self) -> dict[str, Ints]:
        """Returns the arrays that a step depends on, by name, little-endian; none without a hint."""
        if not len(self):
            return {}
        return {f"hint_{one.name}": getattr(self, one.name).astype("<i8") for one in fields(self)[:-1]}


def _hints(found: Sequence[tuple[int, int, Hint]], refused: Mapping[HintRefusal, int]) -> TurnHints:
    tokens = [np.asarray(hint.token_ids, np.int64) for _, _, hint in found]
    return TurnHints(
        token_ids=np.concatenate([np.empty(0, np.int64), *tokens]),
        cu_hints=np.cumsum([0, *(len(each) for each in tokens)], dtype=np.int64),
        firsts=np.asarray([first for first, _, _ in found], np.int64),
        lasts=np.asarray([last for _, last, _ in found], np.int64),
        gaps=np.asarray([hint.gap for _, _, hint in found], np.int64),
        refused=np.asarray([refused.get(reason, 0) for reason in REFUSALS], np.int64),
    )


NO_HINTS = _hints([], {})


@dataclass(frozen=True, slots=True)
class HintedMember:
    """A trajectory of the batch with its hints."""

    trajectory: Trajectory
    """The trajectory."""
    hints: Sequence[Hint]
    """Its hints."""
    segments: Mapping[int, tuple[int, int]]
    """Segment with sampled tokens → range of its tokens on the N axis."""


def find_turns(
    members: Sequence[HintedMember], packed: PackedSequences, *, most: int, refused_before: int = 0
) -> TurnHints:
    """Returns the hints of ``members``, at most ``most``, with the tokens of their turns, and counts of refused ones.

    ``refused_before``: hints that were left out of the groups' records.
    """
    found: list[tuple[int, int, Hint]] = []
    refused: Counter[HintRefusal] = Counter({HintRefusal.GROUP_TOO_LARGE: refused_before})
    for member in members:
        turns: set[int] = set()
        for hint in member.hints:
            place = _place(member, hint, packed)
            if not isinstance(place, HintRefusal) and hint.turn in turns:
                place = HintRefusal.REPEATED
            if not isinstance(place, HintRefusal) and len(found) >= most:
                place = HintRefusal.TOO_MANY
            if isinstance(place, HintRefusal):
                refused[place] += 1
                continue
            turns.add(hint.turn)
            found.append((*place, hint))
    return _hints(found, refused)


def _place(member: HintedMember, hint: Hint, packed: PackedSequences) -> tuple[int, int] | HintRefusal:
    """Returns the range on the N axis of the tokens that the hinted turn sampled, or why the hint is refused."""
    trajectory, turns = member.trajectory, member.trajectory.turns
    if hint.tenant != (trajectory.started.tenant if trajectory.started else None):
        return HintRefusal.OTHER_TENANT
    if hint.turn >= len(turns):
        return HintRefusal.OUT_OF_RANGE
    turn = turns[hint.turn]
    if not turn.sampled_tokens:
        return HintRefusal.MASKED
    segment = turn.segment
    if segment is None and len(trajectory.segments) == 1:
        segment = 0  # in records of older releases, too, all calls are in the only segment
    if segment is None or segment not in member.segments:
        return HintRefusal.UNLOCATED
    begin, end = member.segments[segment]
    before = sum(one.sampled_tokens for one in turns[: hint.turn] if (one.segment or 0) == segment)
    first, last = begin + before, begin + before + turn.sampled_tokens
    if last > end or packed.targets[last - 1] - packed.targets[first] != last - 1 - first:
        return HintRefusal.UNLOCATED  # the record contradicts itself
    # The hint may not go into an earlier turn, nor before the sequence.
    start = int(packed.cu_seqlens[np.searchsorted(packed.cu_seqlens, packed.targets[first], "right") - 1])
    earliest = int(packed.targets[first - 1]) + 1 if first > begin else start
    return (first, last) if packed.targets[first] - hint.gap >= earliest else HintRefusal.OUT_OF_RANGE
