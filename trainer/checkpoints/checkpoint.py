"""Checkpoints: everything a trainer needs to go on as if it had never stopped, appearing on disk whole or not at all.

    00000412/model/               the policy as a Hugging Face directory (what is published is this very file)
    00000412/optimizer/           safetensors, a file a rank
    00000412/manifest.json        of the weights, with their canaries
    00000412/state.json           offsets, announcements
    00000412/SHA256SUMS           of all the files above; `sha256sum -c SHA256SUMS` verifies a checkpoint too
    00000412/position.json        where the trainer got to since (see ``position``)

It is written before anything is published, so that a restarted trainer can publish the same again.
"""

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import NonNegativeFloat, NonNegativeInt, ValidationError
from safetensors import SafetensorError

from headrace.schemas.model import Part
from headrace.schemas.records.weights import Manifest, Weights
from headrace.trainer.announcements.announcement import Announcement
from headrace.trainer.effects import Effect, EffectCallback, ignore_effect
from headrace.trainer.weights.publish import MANIFEST_FILE, WEIGHTS_FILE
from headrace.trainer.weights.store import file_sha256

_log = logging.getLogger(__name__)

MODEL_FOLDER = "model"
OPTIMIZER_FOLDER = "optimizer"
POSITION_FILE = "position.json"
"""Lives beside the checkpoint's files and is replaced while they never change."""
POSITION_PARTIAL = f".{POSITION_FILE}.partial"
"""What is left of a position where the trainer died while it wrote one; the checkpoint is none the worse for it."""
_STATE_FILE = "state.json"
_SUMS_FILE = "SHA256SUMS"
_WRITING = ".writing-"


class CheckpointError(RuntimeError):
    """The checkpoints cannot be used; the message says what to do."""


class CheckpointNotWritten(OSError):
    """The disk did not take a checkpoint: full, read-only, gone. Those before it are as they were."""


class CheckpointState(Part):
    """What a checkpoint knows besides tensors."""

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version, which is also the number of steps taken."""
    offsets: dict[int, NonNegativeInt]
    """Partition of ``training`` → offset of the first group that has not been dealt with."""
    alarms: dict[str, NonNegativeInt] = {}
    """Alarms that are raised, as ``learning.alarms.watch`` left them."""
    announcements: list[Announcement]
    """What is published of this version."""
    grad_norms: list[NonNegativeFloat] = []
    """Gradient norms of the newest steps, oldest first: what an exploding one is recognised by."""
    config_sha256: str = ""
    """Settings under which these steps were taken; empty: unknown."""

    def norms_under(self, config_sha256: str) -> list[float]:
        """The gradient norms that steps under these settings compare with. Another loss, or another divisor of it, has
        norms of another size, and all of its steps would look like explosions."""
        return list(self.grad_norms) if self.config_sha256 in ("", config_sha256) else []

    def pointer(self) -> Weights | None:
        """The record that tells of this version; ``None`` in a supervised stage, which publishes none."""
        pointers = [each.payload for each in self.announcements if each.type == Weights.TYPE]
        return Weights.model_validate_json(pointers[-1]) if pointers else None


class Checkpoint:
    """A checkpoint on disk, verified."""

    def __init__(self, path: Path, state: CheckpointState) -> None:
        """The checkpoint at ``path`` whose state was read already."""
        self.path = path
        self.state = state

    @property
    def model_dir(self) -> Path:
        """The policy as a Hugging Face directory."""
        return self.path / MODEL_FOLDER

    @property
    def weights(self) -> Path:
        """The policy's safetensors file."""
        return self.model_dir / WEIGHTS_FILE

    def manifest(self) -> Manifest:
        """Of the weights."""
        return Manifest.model_validate_json((self.path / MANIFEST_FILE).read_bytes())

    @property
    def optimizer_dir(self) -> Path:
        """The optimiser's state: see ``optimizer_state``."""
        return self.path / OPTIMIZER_FOLDER


class CheckpointWriter:
    """A checkpoint in the making: whatever is put into ``partial`` before :meth:`commit` is part of it."""

    def __init__(self, folder: Path, version: int, on_effect: EffectCallback = ignore_effect) -> None:
        """Begin checkpoint ``version`` in ``folder``; remains of an unfinished one are removed.

        Raises :class:`CheckpointNotWritten` where the disk does not take it.
        """
        self.partial = folder / f"{_WRITING}{version:08d}"
        self._folder = folder
        self._target = folder / f"{version:08d}"
        self._on_effect = on_effect
        with disk_trouble(folder):
            for leftover in folder.glob(f"{_WRITING}*"):
                shutil.rmtree(leftover)
            self.partial.mkdir(parents=True)

    def commit(self, state: CheckpointState, *, keep: int) -> Checkpoint:
        """Make all of it durable, let it appear, and remove all but the newest ``keep`` checkpoints.

        Raises :class:`CheckpointNotWritten` where the disk does not take it.
        """
        with disk_trouble(self._folder):
            (self.partial / _STATE_FILE).write_text(state.model_dump_json())
            sums = "".join(f"{file_sha256(self.partial / name)}  {name}\n" for name in _files(self.partial))
            (self.partial / _SUMS_FILE).write_text(sums)
            self._on_effect(Effect.STATE_WRITTEN)
            for path in (*self.partial.rglob("*"), self.partial):
                sync(path)
            if self._target.exists():  # only an unusable one can be there: the newest usable one was resumed from
                shutil.rmtree(self._target)
            self.partial.rename(self._target)
            sync(self._folder)
            self._on_effect(Effect.CHECKPOINTED)
            for old in _checkpoints(self._folder)[:-keep]:
                shutil.rmtree(old)
        return Checkpoint(self._target, state)


@contextlib.contextmanager
def disk_trouble(folder: Path) -> Iterator[None]:
    """What the disk refuses inside, as :class:`CheckpointNotWritten` that names ``folder``."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointNotWritten(f"checkpoint_dir {folder} takes no checkpoint: {error}") from error


def load_newest(folder: Path, run: str) -> Checkpoint | None:
    """The newest checkpoint whose files are what its sums say; ``None`` where there is none at all.

    Raises :class:`CheckpointError` where none can be used, or where it is of another run.
    """
    found = _checkpoints(folder)
    for path in reversed(found):
        try:
            _verify(path)
            state = CheckpointState.model_validate_json((path / _STATE_FILE).read_bytes())
        except (OSError, ValidationError, ValueError) as error:
            _log.warning("checkpoint %s cannot be used (%s); trying the one before", path, error)
            continue
        if state.run != run:
            raise CheckpointError(f"checkpoint_dir {folder} is of run {state.run!r}, not {run!r}: give each its own")
        return Checkpoint(path, state)
    if found:
        raise CheckpointError(f"none of the {len(found)} checkpoints in {folder} can be used: restore one from a copy")
    return None


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process; raises :class:`CheckpointError` where another one has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(f"another trainer is using checkpoint_dir {folder}: stop it first") from error
        yield


def sync(path: Path) -> None:
    """Wait until the disk has what was written to ``path``, a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verify(path: Path) -> None:
    """Raises ``ValueError`` naming what is damaged, missing or not vouched for."""
    lines = (path / _SUMS_FILE).read_text().splitlines()
    sums = {line[66:]: line[:64] for line in lines}
    if sums.keys() != set(_files(path)) - {_SUMS_FILE, POSITION_FILE, POSITION_PARTIAL}:
        raise ValueError(f"{_SUMS_FILE} lists other files than are there")
    wrong = [name for name, sha256 in sums.items() if file_sha256(path / name) != sha256]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} damaged")


def _files(path: Path) -> list[str]:
    """The files under ``path``, relative to it, in a fixed order."""
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def _checkpoints(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isdigit())
