"""Checkpoints: everything a trainer needs to go on as if it had never stopped, appearing on disk whole or not at all.

    00000412/model/               the policy as a Hugging Face directory (what is published is this very file)
    00000412/optimizer.safetensors
    00000412/manifest.json        of the weights, with their canaries
    00000412/state.json           offsets, announcements, sha256 of the other files

It is written before anything is said, so that whatever was said can be said again.
"""

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import NonNegativeInt, ValidationError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from headrace.schemas.model import Part
from headrace.schemas.records import Manifest
from headrace.trainer.announce import Announcement
from headrace.trainer.model.load import save_model
from headrace.trainer.weights.publish import MANIFEST_FILE, WEIGHTS_FILE, manifest_bytes
from headrace.trainer.weights.store import file_sha256

_log = logging.getLogger(__name__)

_OPTIMIZER_FILE = "optimizer.safetensors"
_STATE_FILE = "state.json"
_WRITING = ".writing-"


class CheckpointError(RuntimeError):
    """The checkpoints cannot be used; the message says what to do."""


class CheckpointState(Part):
    """What a checkpoint knows besides tensors."""

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version, which is also the number of steps taken."""
    offsets: dict[int, NonNegativeInt]
    """Partition of ``training`` → offset of the first group that has not been dealt with."""
    announcements: list[Announcement]
    """What the log must say of this version."""
    files: dict[str, str] = {}
    """Sha256 (hex) of the other files by their path in the checkpoint."""


class Checkpoint:
    """A checkpoint on disk, verified."""

    def __init__(self, path: Path, state: CheckpointState) -> None:
        """The checkpoint at ``path`` whose state was read already."""
        self.path = path
        self.state = state

    @property
    def model_dir(self) -> Path:
        """The policy as a Hugging Face directory."""
        return self.path / "model"

    @property
    def weights(self) -> Path:
        """The policy's safetensors file."""
        return self.model_dir / WEIGHTS_FILE

    def manifest(self) -> Manifest:
        """The manifest of the weights."""
        return Manifest.model_validate_json((self.path / MANIFEST_FILE).read_bytes())

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """The optimiser's state."""
        return load_file(self.path / _OPTIMIZER_FILE)


class CheckpointWriter:
    """A checkpoint in the making: the model first, since its manifest and announcements rest on the file's hash."""

    def __init__(self, folder: Path, version: int) -> None:
        """Begin checkpoint ``version`` in ``folder``; remains of an unfinished one are removed."""
        self._folder = folder
        self._target = folder / f"{version:08d}"
        self._partial = folder / f"{_WRITING}{version:08d}"
        for leftover in folder.glob(f"{_WRITING}*"):
            shutil.rmtree(leftover)
        self._partial.mkdir(parents=True)

    def write_model(self, model: PreTrainedModel, *, tokenizer_from: Path) -> Path:
        """Write the policy; returns its safetensors file."""
        save_model(model, self._partial / "model", tokenizer_from=tokenizer_from)
        return self._partial / "model" / WEIGHTS_FILE

    def commit(
        self, state: CheckpointState, manifest: Manifest, optimizer: dict[str, torch.Tensor], *, keep: int
    ) -> Checkpoint:
        """Write the rest, make it durable, let it appear, and remove all but the newest ``keep`` checkpoints."""
        save_file(optimizer, self._partial / _OPTIMIZER_FILE)
        (self._partial / MANIFEST_FILE).write_bytes(manifest_bytes(manifest))
        files = sorted(path for path in self._partial.rglob("*") if path.is_file())
        hashes = {str(path.relative_to(self._partial)): file_sha256(path) for path in files}
        state = state.model_copy(update={"files": hashes})
        state_file = self._partial / _STATE_FILE
        state_file.write_text(state.model_dump_json())
        for path in (*files, state_file, self._partial / "model", self._partial):
            _sync(path)
        if self._target.exists():  # only an unusable one can be there: the newest usable one was resumed from
            shutil.rmtree(self._target)
        self._partial.rename(self._target)
        _sync(self._folder)
        for old in _checkpoints(self._folder)[:-keep]:
            shutil.rmtree(old)
        return Checkpoint(self._target, state)


def load_newest(folder: Path, run: str) -> Checkpoint | None:
    """The newest checkpoint whose files are what its state says; ``None`` where there is none at all.

    Raises :class:`CheckpointError` where none can be used, or where it is of another run.
    """
    found = _checkpoints(folder)
    for path in reversed(found):
        try:
            state = CheckpointState.model_validate_json((path / _STATE_FILE).read_bytes())
            wrong = [name for name, sha256 in state.files.items() if file_sha256(path / name) != sha256]
        except (OSError, ValidationError) as error:
            _log.warning("checkpoint %s cannot be read (%s); trying the one before", path, error)
            continue
        if wrong:
            _log.warning("checkpoint %s: %s is damaged; trying the one before", path, ", ".join(wrong))
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


def _checkpoints(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isdigit())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
