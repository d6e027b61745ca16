"""The ledger's fold, kept from one command to the next: only what came since is read."""

from pathlib import Path

import msgspec

from headrace.schemas.kafka.fold_cache import UnusableFoldError, digest_of
from headrace.schemas.kafka.resumed_fold import resume_fold
from headrace.streams.ledger import account, tally
from headrace.streams.ledger.account import Account
from headrace.streams.ledger.ledger import LedgerReader, kafka_reader
from headrace.streams.ledger.tally import Tally


class _State(msgspec.Struct, array_like=True):
    accounts: dict[str, Account]
    unreadable: int


_DECODER = msgspec.msgpack.Decoder(_State)


def pack_tally(folded: Tally) -> bytes:
    """``folded`` as bytes."""
    return msgspec.msgpack.encode(_State(folded.accounts, folded.unreadable))


def unpack_tally(packed: bytes) -> Tally:
    """What :func:`pack_tally` made; raises :class:`UnusableFoldError` for other bytes."""
    try:
        state = _DECODER.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnusableFoldError(f"it is damaged ({error})") from error
    return Tally.of(state.accounts, state.unreadable)


async def kept_ledger(bootstrap: str, folder: Path, *, from_start: bool = False) -> LedgerReader:
    """A reader of the Kafka at ``bootstrap`` that has caught up, as :func:`resume_fold` has it, and kept in ``folder``.

    Raises ``LookupError`` where a topic is missing, and aiokafka's errors.
    """
    return await resume_fold(
        bootstrap,
        folder,
        "ledger",
        digest_of(account.__file__, tally.__file__),
        begin=lambda: kafka_reader(bootstrap),
        resume=lambda packed, marks: kafka_reader(bootstrap, unpack_tally(packed), marks),
        pack=lambda reader: pack_tally(reader.tally),
        from_start=from_start,
    )
