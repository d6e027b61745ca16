"""A batch: the data of one optimiser step, as flat arrays in a fixed order.

Axis legend: M trajectories, S sequences (their segments), T tokens, N sampled tokens. Every sampled token of every
member is on the N axis exactly once: a segment's mask marks the tokens that its own calls sampled; tokens sampled in an
earlier segment are context in a later one.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.schemas.records.group import Member
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import TrainedGroup
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.trainer.batches.packing import Floats, Ints, PackedSequences, pack, select
from headrace.trainer.batches.turn_hints import NO_HINTS, HintedMember, TurnHints, find_turns

BATCH_FORMAT = 2
"""Increase it with every change that gives the same groups another hash. A step records its format, and rebuilding
reports formats that this code cannot make.

    1  advantages scaled by the standard deviation of the record's members
    2  by that of all scored members of the group; tokens have temperatures (in format 1 all are trained at 1). The
       hints that the recipe allows are hashed if there are any
"""

BATCH_FORMATS = (1, 2)
"""Formats that this code makes."""


@dataclass(frozen=True, slots=True)
class ResolvedMember:
    """A member with the trajectory that its reference points at."""

    member: Member
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class AdmittedGroup:
    """The admitted members of a training group."""

    group_id: str
    reference: Reference
    """The group's place in ``training``."""
    members: tuple[ResolvedMember, ...]
    """By trajectory id; at least one."""
    reward_std: float | None = None
    """Sample standard deviation of the rewards of all scored members of the group; ``None`` for a single one."""
    members_std: float | None = None
    """That of the record's members alone, by which batches of format 1 were scaled."""
    task_id: str | None = None
    """Task."""
    hints_refused: int = 0
    """Hints that were left out of the group's record."""

    def as_trained(self) -> TrainedGroup:
        """Returns the group as a ``Step`` names it."""
        return TrainedGroup(
            group_id=self.group_id,
            group=self.reference,
            trajectory_ids=[resolved.member.trajectory_id for resolved in self.members],
            trajectories=[resolved.member.trajectory for resolved in self.members],
        )


NOTHING = pack([([0, 0], [0, 0])])
"""One sequence without a target, on which a rank without work runs a model."""


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Flat arrays; nothing is padded."""

    packed: PackedSequences
    """Tokens, positions, boundaries and temperatures; the targets are the N sampled tokens."""
    behaviour_logprobs: Floats
    """(N,) log-probability under the policy that sampled the token, as recorded."""
    advantages: Floats
    """(N,) the trajectory's advantage, on each of its tokens."""
    versions: Ints
    """(N,) policy version that sampled the token."""
    trajectories: Ints
    """(N,) index of the trajectory, in the batch's order."""
    rewards: Floats
    """(M,) reward of each trajectory."""
    hints: TurnHints = NO_HINTS
    """Hints for turns; none unless the recipe allows some."""

    def sha256(self, format: int = BATCH_FORMAT) -> str:
        """Returns the hash (hex) of a step's inputs: names, shapes and little-endian bytes of the format's arrays."""
        digest = hashlib.sha256()
        for content in self._contents(format).values():
            digest.update(content)
        return digest.hexdigest()

    def array_sha256(self, format: int = BATCH_FORMAT) -> dict[str, str]:
        """Returns the hash (hex) of each of these arrays by name, to find the one that makes :meth:`sha256` differ."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self._contents(format).items()}

    def arrays(self, format: int = BATCH_FORMAT) -> dict[str, Ints | Floats]:
        """Returns the arrays that a step depends on, by name, little-endian."""
        arrays: dict[str, Ints | Floats] = {
            "token_ids": self.packed.token_ids.astype("<i8"),
            "cu_seqlens": self.packed.cu_seqlens.astype("<i8"),
            "targets": self.packed.targets.astype("<i8"),
            "behaviour_logprobs": self.behaviour_logprobs.astype("<f4"),
            "advantages": self.advantages.astype("<f4"),
            "versions": self.versions.astype("<i8"),
            "trajectories": self.trajectories.astype("<i8"),
        }
        if format == 1:
            return arrays
        return arrays | {"temperatures": self.packed.temperatures.astype("<f4")} | self.hints.arrays()

    def _contents(self, format: int) -> dict[str, bytes]:
        return {
            name: f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes()
            for name, array in self.arrays(format).items()
        }


def make_batch(groups: Sequence[AdmittedGroup], *, max_hinted_turns: int = 0) -> Batch:
    """Returns the batch of ``groups``, with at most ``max_hinted_turns`` of their hints; groups, members and segments
    keep their order.

    Segments recorded before temperatures existed get 1, at which they were trained. Raises ``ValueError`` if a member
    lacks log-probabilities, versions or temperatures, or if the masks mark another number of tokens than the group's
    record states: such a member should not have been admitted.
    """
    sequences, behaviour, advantages, versions, temperatures, trajectories = [], [], [], [], [], []
    members = [resolved for group in groups for resolved in group.members]
    hinted, begin = [], 0
    for number, resolved in enumerate(members):
        member, sampled = resolved.member, 0
        places: dict[int, tuple[int, int]] = {}
        for index, segment in enumerate(resolved.trajectory.segments):
            count = sum(segment.loss_mask)
            if not count:
                continue
            spans = [
                (span.version, span.end - span.start) for span in segment.version_spans if span.version is not None
            ]
            if segment.logprobs is None or sum(length for _, length in spans) != count:
                raise ValueError(f"trajectory {member.trajectory_id}: a segment lacks log-probabilities or versions")
            sequences.append((segment.token_ids, segment.loss_mask))
            temperatures.append(_temperatures(segment, count, member.trajectory_id))
            behaviour.append(np.asarray(segment.logprobs, np.float32))
            versions.append(np.repeat([version for version, _ in spans], [length for _, length in spans]))
            places[index] = (begin + sampled, begin + sampled + count)
            sampled += count
        if sampled != member.sampled_tokens:
            raise ValueError(
                f"trajectory {member.trajectory_id}: {sampled} sampled tokens, its group has {member.sampled_tokens}"
            )
        advantages.append(np.full(sampled, member.advantage, np.float32))
        trajectories.append(np.full(sampled, number, np.int64))
        begin += sampled
        if member.hints:
            hinted.append(HintedMember(resolved.trajectory, member.hints, places))
    packed = pack(sequences, np.concatenate(temperatures))
    hints = NO_HINTS
    if max_hinted_turns:
        refused = sum(group.hints_refused for group in groups)
        hints = find_turns(hinted, packed, most=max_hinted_turns, refused_before=refused)
    return Batch(
        packed=packed,
        behaviour_logprobs=np.concatenate(behaviour),
        advantages=np.concatenate(advantages),
        versions=np.concatenate(versions).astype(np.int64),
        trajectories=np.concatenate(trajectories),
        rewards=np.asarray([resolved.member.reward for resolved in members], np.float32),
        hints=hints,
    )


def _temperatures(segment: Segment, count: int, trajectory_id: str) -> Floats:
    """Returns the (count,) temperature of each token that ``segment`` sampled."""
    if not segment.sampling_spans:
        return np.ones(count, np.float32)
    known = [span.temperature for span in segment.sampling_spans if span.temperature]
    lengths = [span.end - span.start for span in segment.sampling_spans if span.temperature]
    if sum(lengths) != count:
        raise ValueError(f"trajectory {trajectory_id}: a segment lacks temperatures")
    return np.repeat(np.asarray(known, np.float32), lengths)


def select_sequences(batch: Batch, sequences: Sequence[int]) -> tuple[Batch, Ints]:
    """Returns some of a batch's sequences, in the given order, and the indices of their tokens on the N axis.

    Trajectories keep their numbers; hints are left out. An empty selection gives one sequence without a sampled token,
    so that a model can be run on it.
    """
    packed, kept = select(batch.packed, sequences) if sequences else (NOTHING, np.empty(0, np.int64))
    part = replace(
        batch,
        packed=packed,
        behaviour_logprobs=batch.behaviour_logprobs[kept],
        advantages=batch.advantages[kept],
        versions=batch.versions[kept],
        trajectories=batch.trajectories[kept],
        hints=NO_HINTS,
    )
    return part, kept


def owners_of_sequences(batch: Batch) -> Ints:
    """Returns the (S,) number of the trajectory that each sequence belongs to."""
    return batch.trajectories[np.searchsorted(batch.packed.targets, batch.packed.cu_seqlens[:-1])]
