"""The ledger's fold, kept from one command to the next: only what came since is read."""

import logging
from pathlib import Path

import msgspec

from headrace.schemas.kafka.bookmarks import LogReplacedError, cluster_id
from headrace.schemas.kafka.kept_fold import FoldIdentity, UnusableFoldError, digest_of, read_fold, write_fold
from headrace.streams.ledger import account, tally
from headrace.streams.ledger.account import Account
from headrace.streams.ledger.ledger import LedgerReader, kafka_reader
from headrace.streams.ledger.tally import Tally

logger = logging.getLogger(__name__)


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
        raise UnusableFoldError(f"is damaged ({error})") from error
    return Tally.of(state.accounts, state.unreadable)


async def read_on(bootstrap: str, folder: Path, *, from_start: bool = False) -> LedgerReader:
    """A reader of the Kafka at ``bootstrap`` that has caught up: from what ``folder`` keeps of an earlier one, or from
    the start where that is wanted, nothing is kept, or the log is not the one that was read then. What it knows
    is kept in ``folder`` for the next.

    Raises ``LookupError`` where a topic is missing, and aiokafka's errors; not where ``folder`` cannot be used.
    """
    cluster = await cluster_id(bootstrap)
    if cluster is None:
        reader = kafka_reader(bootstrap)
        await reader.catch_up()
        return reader
    identity = FoldIdentity("ledger", cluster, digest_of(account.__file__, tally.__file__))
    kept = None if from_start else _kept(folder, identity, bootstrap)
    reader = kept or kafka_reader(bootstrap)
    try:
        await reader.catch_up()
    except LogReplacedError as error:
        logger.warning("the log is read from the start: %s", error)
        reader = kafka_reader(bootstrap)
        await reader.catch_up()
    try:
        if not write_fold(folder, identity, reader.marks, pack_tally(reader.tally)):
            logger.warning("the ledger is too large to be kept: the next one reads the log from the start")
    except OSError as error:
        logger.warning("the ledger is not kept, and the next one reads the log from the start: %s", error)
    return reader


def _kept(folder: Path, identity: FoldIdentity, bootstrap: str) -> LedgerReader | None:
    try:
        found = read_fold(folder, identity)
        return None if found is None else kafka_reader(bootstrap, unpack_tally(found[1]), found[0])
    except (UnusableFoldError, OSError) as error:
        logger.warning("the log is read from the start: the ledger that was kept %s", error)
        return None
