"""Checkpoints: everything a trainer needs to resume with the same state, written to disk atomically.

    00000412/model/               the policy as a Hugging Face directory (its weights file is the one that is published)
    00000412/optimizer/           safetensors, one file per rank
    00000412/manifest.json        of the weights, with their canaries
    00000412/state.json           offsets, announcements
    00000412/SHA256SUMS           of all the files above; `sha256sum -c SHA256SUMS` verifies a checkpoint too
    00000412/position.json        the trainer's position since the checkpoint (see ``position``)

It is written before anything of it is published, so that a restarted trainer can publish the same again.
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
from headrace.schemas.objects.store import file_sha256
from headrace.schemas.records.weights import Manifest, Weights
from headrace.trainer.announcements.announcement import Announcement
from headrace.trainer.step_effects import Effect, EffectCallback, ignore_effect
from headrace.trainer.weights.published import MANIFEST_FILE, WEIGHTS_FILE

_log = logging.getLogger(__name__)

MODEL_FOLDER = "model"
OPTIMIZER_FOLDER = "optimizer"
POSITION_FILE = "position.json"
"""Is next to the checkpoint's files, and is replaced, while they never change."""
POSITION_PARTIAL = f".{POSITION_FILE}.partial"
"""Remains if the trainer dies while it writes a position; the checkpoint stays valid."""
_STATE_FILE = "state.json"
_SUMS_FILE = "SHA256SUMS"
_WRITING = ".writing-"


class CheckpointError(RuntimeError):
    """The checkpoints cannot be used; the message names the remedy."""


class CheckpointNotWritten(OSError):
    """A checkpoint could not be written: the disk is full, read-only or missing. Earlier checkpoints are unchanged."""


class CheckpointState(Part):
    """A checkpoint's contents besides tensors."""

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version, which is also the number of steps taken."""
    offsets: dict[int, NonNegativeInt]
    """Partition of ``training`` → offset of the first record that has not been processed."""
    alarms: dict[str, NonNegativeInt] = {}
    """Raised alarms, as ``learning.alarms.watch`` returned them."""
    announcements: list[Announcement]
    """Records that publish this version."""
    grad_norms: list[NonNegativeFloat] = []
    """Gradient norms of the newest steps, oldest first, with which an exploding norm is compared."""
    config_sha256: str = ""
    """Settings under which these steps were taken; empty: unknown."""

    def norms_under(self, config_sha256: str) -> list[float]:
        """Returns the gradient norms that steps under these settings compare with: none after a change of settings. The
        norms of another loss, or of another divisor, have another scale, and all steps would look like explosions."""
        return list(self.grad_norms) if self.config_sha256 in ("", config_sha256) else []

    def pointer(self) -> Weights | None:
        """Returns the ``Weights`` record of this version; ``None`` in a supervised stage, which publishes none."""
        pointers = [each.payload for each in self.announcements if each.type == Weights.TYPE]
        return Weights.model_validate_json(pointers[-1]) if pointers else None


class Checkpoint:
    """A checkpoint on disk, verified."""

    def __init__(self, path: Path, state: CheckpointState) -> None:
        """The checkpoint at ``path``, whose state was read already."""
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
        """Returns the manifest of the weights."""
        return Manifest.model_validate_json((self.path / MANIFEST_FILE).read_bytes())

    @property
    def optimizer_dir(self) -> Path:
        """The optimiser's state: see ``optimizer_state``."""
        return self.path / OPTIMIZER_FOLDER


class CheckpointWriter:
    """A checkpoint being written: every file in ``partial`` before :meth:`commit` is part of it."""

    def __init__(self, folder: Path, version: int, on_effect: EffectCallback = ignore_effect) -> None:
        """Begin checkpoint ``version`` in ``folder``; remains of an unfinished one are removed.

        Raises :class:`CheckpointNotWritten` if it cannot be written.
        """
        self.partial = folder / f"{_WRITING}{version:08d}"
        self._folder = folder
        self._target = folder / f"{version:08d}"
        self._on_effect = on_effect
        with disk_errors(folder):
            for leftover in folder.glob(f"{_WRITING}*"):
                shutil.rmtree(leftover)
            self.partial.mkdir(parents=True)

    def commit(self, state: CheckpointState, *, keep: int) -> Checkpoint:
        """Make the checkpoint durable and visible, and remove all but the newest ``keep`` checkpoints.

        Raises :class:`CheckpointNotWritten` if it cannot be written.
        """
        with disk_errors(self._folder):
            (self.partial / _STATE_FILE).write_text(state.model_dump_json())
            sums = "".join(f"{file_sha256(self.partial / name)}  {name}\n" for name in _files(self.partial))
            (self.partial / _SUMS_FILE).write_text(sums)
            self._on_effect(Effect.STATE_WRITTEN)
            for path in (*self.partial.rglob("*"), self.partial):
                sync(path)
            if self._target.exists():  # unusable: the trainer resumed from the newest usable one
                shutil.rmtree(self._target)
            self.partial.rename(self._target)
            sync(self._folder)
            self._on_effect(Effect.CHECKPOINTED)
            for old in _checkpoints(self._folder)[:-keep]:
                shutil.rmtree(old)
        return Checkpoint(self._target, state)


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn disk errors raised inside into :class:`CheckpointNotWritten`, which names ``folder``."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointNotWritten(f"checkpoint_dir {folder} cannot store a checkpoint: {error}") from error


def load_newest(folder: Path, run: str) -> Checkpoint | None:
    """Returns the newest checkpoint whose files match its checksums; ``None`` if there is no checkpoint.

    Raises :class:`CheckpointError` if all are unusable, or if the newest usable one is of another run.
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
    """Lock ``folder`` for this process; raises :class:`CheckpointError` if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(f"another trainer is using checkpoint_dir {folder}: stop it first") from error
        yield


def sync(path: Path) -> None:
    """Wait until the writes to ``path``, a file or a folder, are durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verify(path: Path) -> None:
    """Raises ``ValueError`` naming the files that are damaged, missing or not in the checksums."""
    lines = (path / _SUMS_FILE).read_text().splitlines()
    sums = {line[66:]: line[:64] for line in lines}
    if sums.keys() != set(_files(path)) - {_SUMS_FILE, POSITION_FILE, POSITION_PARTIAL}:
        raise ValueError(f"{_SUMS_FILE} does not list the files that exist")
    wrong = [name for name, sha256 in sums.items() if file_sha256(path / name) != sha256]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} damaged")


def _files(path: Path) -> list[str]:
    """Returns the files under ``path``, relative to it, in a fixed order."""
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def _checkpoints(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isdigit())
