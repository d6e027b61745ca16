"""The ledger's fold, stored between commands so that only new records are read."""

from pathlib import Path

import msgspec

from headrace.schemas import upcast, wire
from headrace.schemas.kafka.fold_cache import UnusableFoldError, digest_of
from headrace.schemas.kafka.resumed_fold import resume_fold
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.step import Step
from headrace.streams.ledger import account, tally
from headrace.streams.ledger.account import Account
from headrace.streams.ledger.ledger import LedgerReader, kafka_reader
from headrace.streams.ledger.tally import LedgerTally


class _State(msgspec.Struct, array_like=True):
    accounts: dict[str, Account]
    unreadable: int


_DECODED = (Rejection, TrainingGroup, Step)
"""Records that the fold reads by their models."""

_DECODER = msgspec.msgpack.Decoder(_State)


def pack_tally(folded: LedgerTally) -> bytes:
    """Returns ``folded`` as bytes."""
    return msgspec.msgpack.encode(_State(folded.accounts, folded.unreadable))


def unpack_tally(packed: bytes) -> LedgerTally:
    """Reverse :func:`pack_tally`. Raises :class:`UnusableFoldError` for invalid bytes."""
    try:
        state = _DECODER.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnusableFoldError(f"it is damaged ({error})") from error
    return LedgerTally.of(state.accounts, state.unreadable)


async def kept_ledger(bootstrap: str, folder: Path | None, *, from_start: bool = False) -> LedgerReader:
    """Returns a reader that has caught up with the Kafka at ``bootstrap``, its fold stored in ``folder``
    (``None``: not stored); see :func:`resume_fold`.

    Raises ``LookupError`` if a topic is missing, and aiokafka's errors.
    """
    return await resume_fold(
        bootstrap,
        folder,
        "ledger",
        digest_of(account.__file__, tally.__file__, wire.__file__, upcast.__file__, models=_DECODED),
        begin=lambda: kafka_reader(bootstrap),
        resume=lambda packed, marks: kafka_reader(bootstrap, unpack_tally(packed), marks),
        pack=lambda reader: pack_tally(reader.tally),
        from_start=from_start,
    )
