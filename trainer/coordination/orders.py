"""Orders of rank 0 to the other ranks, which all execute together. Numbers and text only, nothing pickled.

order  number  text
STEP   412            followed by a limit and the batch, array by array
WRITE_OPTIMIZER       /checkpoints/run/.writing-00000413/optimizer
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.trainer.batches.batch import Batch
from headrace.trainer.batches.packing import PackedSequences
from headrace.trainer.batches.turn_hints import TurnHints
from headrace.trainer.parallel.ranks import Ranks

MAX_TEXT = 4096
"""Largest size of an order's text, a path, in bytes."""


class Order(IntEnum):
    """The next operation of all ranks."""

    WAIT = 0
    """No operation: a heartbeat while rank 0 waits for groups."""
    OPEN = 1
    """Replace the learner by one loaded from the checkpoint ``text``, or from the base model if it is empty."""
    STEP = 2
    """Train policy ``number`` on the batch that follows, after the limit of the gradient norm."""
    CANARIES = 3
    """Compute the canaries seeded by ``number``."""
    CHECK_WEIGHTS = 4
    """Check that all weights are finite."""
    WRITE_MODEL = 5
    """Gather the weights on rank 0, which writes them."""
    WRITE_OPTIMIZER = 6
    """Write each rank's shard of the optimiser's state into the folder ``text``."""
    STOP = 7
    """Leave the job."""


def send_order(ranks: Ranks, order: Order, number: int = 0, text: str = "") -> None:
    """Send an order; called on rank 0. Raises ``ValueError`` for a text of more than :data:`MAX_TEXT` bytes."""
    encoded = text.encode()
    if len(encoded) > MAX_TEXT:
        raise ValueError(
            f"an order's text has {len(encoded)} bytes, at most {MAX_TEXT} are sent: choose a shorter path"
        )
    ranks.broadcast(np.array([order, number, len(encoded)], np.int64))
    if encoded:
        ranks.broadcast(np.frombuffer(encoded, np.uint8).copy())


def receive_order(ranks: Ranks) -> tuple[Order, int, str]:
    """Wait for the next order; returns it with its number and text. Called on every rank except 0."""
    order, number, length = ranks.broadcast(np.zeros(3, np.int64)).tolist()
    text = ranks.broadcast(np.zeros(min(length, MAX_TEXT), np.uint8)).tobytes().decode() if length else ""
    return Order(order), number, text


def broadcast_batch(batch: Batch | None, ranks: Ranks) -> Batch:
    """Returns rank 0's ``batch`` on every rank; the others pass ``None``. Each rank computes its share (see
    ``balance``).

    Raises ``ValueError`` if an array is neither int64 nor float32.
    """
    sent = None if batch is None else dict(_arrays(batch))
    names = _names(Batch)
    header = np.zeros((len(names), 2), np.int64)
    if sent is not None:
        for name, array in sent.items():
            if array.dtype not in _TYPES:
                raise ValueError(f"{name} is {array.dtype}: only int64 and float32 can be sent")
        header[:] = [(len(sent[name]), _TYPES.index(sent[name].dtype)) for name in names]
    header = ranks.broadcast(header)
    arrays: dict[str, Any] = {
        name: ranks.broadcast(sent[name] if sent is not None else np.empty(length, _TYPES[type_]))
        for name, (length, type_) in zip(names, header.tolist(), strict=True)
    }
    parts: dict[str, Any] = {part: kind(**_of_part(arrays, part)) for part, kind in _PARTS.items()}
    return Batch(**parts, **{name: array for name, array in arrays.items() if "." not in name})


_TYPES: list[np.dtype[Any]] = [np.dtype(np.int64), np.dtype(np.float32)]


_PARTS: dict[str, type[PackedSequences] | type[TurnHints]] = {"packed": PackedSequences, "hints": TurnHints}
"""Fields of a batch that consist of arrays themselves."""


def _names(batch: type[Batch]) -> list[str]:
    inner = [f"{part}.{field.name}" for part, kind in _PARTS.items() for field in fields(kind)]
    return [*inner, *(field.name for field in fields(batch) if field.name not in _PARTS)]


def _of_part(arrays: Mapping[str, Any], part: str) -> dict[str, Any]:
    return {name.partition(".")[2]: array for name, array in arrays.items() if name.startswith(f"{part}.")}


def _arrays(batch: Batch) -> Iterator[tuple[str, NDArray[Any]]]:
    for name in _names(Batch):
        part, dot, inner = name.partition(".")
        yield name, getattr(getattr(batch, part), inner) if dot else getattr(batch, name)
