"""Paths of the archive in the object store. A segment's name is its first offset, as of a segment of Kafka's log.

    archive/topic=events/log=Yq3…/partition=0/00000000000000007104.parquet

The parts with ``=`` are read as columns by DuckDB, pandas and pyarrow. A name has no stop: a store creates an object
once, so of two writers that begin at the same offset one wins, the other adopts its range, and no record is stored
twice, whatever ranges the two had in mind.
"""

import re

ROOT = "archive"
SUFFIX = ".parquet"
_IN_PATHS = str.maketrans("+/", "-_")
_NAME = re.compile(r"\d{20}")


def folder_of(topic: str, topic_id: str, partition: int) -> str:
    """Returns the folder of a partition. ``topic_id``: the topic's id, base64, whose ``+`` and ``/`` become ``-`` and
    ``_``.
    """
    log = topic_id.translate(_IN_PATHS).rstrip("=")
    return f"{ROOT}/topic={topic}/log={log}/partition={partition}"


def path_of(topic: str, topic_id: str, partition: int, first: int) -> str:
    """Returns the path of the segment that begins at the offset ``first``."""
    return f"{folder_of(topic, topic_id, partition)}/{first:020d}{SUFFIX}"


def first_of(path: str) -> int | None:
    """Returns the first offset of the segment at ``path``; ``None`` if no segment is named so."""
    name = path.rpartition("/")[2].removesuffix(SUFFIX)
    return int(name) if path.endswith(SUFFIX) and _NAME.fullmatch(name) else None
