"""A batch: what one optimiser step is trained on, as flat arrays in a fixed order.

Axis legend: M trajectories, S sequences (their segments), T tokens, N sampled tokens. Every sampled token of every
member stands on the N axis exactly once: a segment's mask marks what its own calls sampled, and what an earlier
segment sampled is context in a later one.
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

BATCH_FORMAT = 2
"""Raise it with every change that gives the same groups another hash: a step says in which format it was made, and
rebuilding says so where this code cannot make it.

    1  advantages scaled by the standard deviation of the record's members
    2  by that of all scored members of the group; tokens have temperatures, where all had been trained at 1
"""

BATCH_FORMATS = (1, 2)
"""Formats that this code makes."""


@dataclass(frozen=True, slots=True)
class ResolvedMember:
    """A member with the tokens that its reference points at."""

    member: Member
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class AdmittedGroup:
    """What is left of a training group after admission."""

    group_id: str
    reference: Reference
    """Where the group stands in ``training``."""
    members: tuple[ResolvedMember, ...]
    """By trajectory id; at least one."""
    reward_std: float | None = None
    """Sample standard deviation of the rewards of all scored members of the group; of one there is none."""
    members_std: float | None = None
    """That of the record's members alone: what batches of format 1 were scaled by."""
    task_id: str | None = None
    """Task."""

    def as_trained(self) -> TrainedGroup:
        """The group as a ``Step`` names it."""
        return TrainedGroup(
            group_id=self.group_id,
            group=self.reference,
            trajectory_ids=[resolved.member.trajectory_id for resolved in self.members],
            trajectories=[resolved.member.trajectory for resolved in self.members],
        )


_NOTHING = pack([([0, 0], [0, 0])])


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

    def sha256(self, format: int = BATCH_FORMAT) -> str:
        """Hash (hex) of everything a step depends on: names, shapes and little-endian bytes of the format's arrays."""
        digest = hashlib.sha256()
        for content in self._contents(format).values():
            digest.update(content)
        return digest.hexdigest()

    def array_sha256(self, format: int = BATCH_FORMAT) -> dict[str, str]:
        """Hash (hex) of each of these arrays by its name: where :meth:`sha256` differs, one of them does."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self._contents(format).items()}

    def arrays(self, format: int = BATCH_FORMAT) -> dict[str, Ints | Floats]:
        """What a step depends on, by name, little-endian."""
        arrays: dict[str, Ints | Floats] = {
            "token_ids": self.packed.token_ids.astype("<i8"),
            "cu_seqlens": self.packed.cu_seqlens.astype("<i8"),
            "targets": self.packed.targets.astype("<i8"),
            "behaviour_logprobs": self.behaviour_logprobs.astype("<f4"),
            "advantages": self.advantages.astype("<f4"),
            "versions": self.versions.astype("<i8"),
            "trajectories": self.trajectories.astype("<i8"),
        }
        return arrays if format == 1 else arrays | {"temperatures": self.packed.temperatures.astype("<f4")}

    def _contents(self, format: int) -> dict[str, bytes]:
        return {
            name: f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes()
            for name, array in self.arrays(format).items()
        }


def make_batch(groups: Sequence[AdmittedGroup]) -> Batch:
    """The batch of ``groups``, in their order, members and segments in theirs.

    Segments from before temperatures were kept have 1: what they were trained at. Raises ``ValueError`` where a member
    lacks log-probabilities, versions or temperatures, or the masks do not mark as many tokens as the group's record
    says: such a member should not have been admitted.
    """
    sequences, behaviour, advantages, versions, temperatures, trajectories = [], [], [], [], [], []
    members = [resolved for group in groups for resolved in group.members]
    for number, resolved in enumerate(members):
        member, sampled = resolved.member, 0
        for segment in resolved.trajectory.segments:
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
            sampled += count
        if sampled != member.sampled_tokens:
            raise ValueError(
                f"trajectory {member.trajectory_id}: {sampled} sampled tokens, its group says {member.sampled_tokens}"
            )
        advantages.append(np.full(sampled, member.advantage, np.float32))
        trajectories.append(np.full(sampled, number, np.int64))
    return Batch(
        packed=pack(sequences, np.concatenate(temperatures)),
        behaviour_logprobs=np.concatenate(behaviour),
        advantages=np.concatenate(advantages),
        versions=np.concatenate(versions).astype(np.int64),
        trajectories=np.concatenate(trajectories),
        rewards=np.asarray([resolved.member.reward for resolved in members], np.float32),
    )


def _temperatures(segment: Segment, count: int, trajectory_id: str) -> Floats:
    """(count,) temperature of each token that ``segment`` sampled."""
    if not segment.sampling_spans:
        return np.ones(count, np.float32)
    known = [span.temperature for span in segment.sampling_spans if span.temperature]
    lengths = [span.end - span.start for span in segment.sampling_spans if span.temperature]
    if sum(lengths) != count:
        raise ValueError(f"trajectory {trajectory_id}: a segment lacks temperatures")
    return np.repeat(np.asarray(known, np.float32), lengths)


def select_sequences(batch: Batch, sequences: Sequence[int]) -> tuple[Batch, Ints]:
    """Some of a batch's sequences, in the order asked for, and which of the N tokens they hold (indices).

    Trajectories keep their numbers. Of no sequences at all there is a sequence without a sampled token: something that
    a model can be run on.
    """
    packed, kept = select(batch.packed, sequences) if sequences else (_NOTHING, np.empty(0, np.int64))
    part = replace(
        batch,
        packed=packed,
        behaviour_logprobs=batch.behaviour_logprobs[kept],
        advantages=batch.advantages[kept],
        versions=batch.versions[kept],
        trajectories=batch.trajectories[kept],
    )
    return part, kept


def owners_of_sequences(batch: Batch) -> Ints:
    """(S,) number of the trajectory that each sequence belongs to."""
    return batch.trajectories[np.searchsorted(batch.packed.targets, batch.packed.cu_seqlens[:-1])]
