"""Every trajectory with its sampled tokens and their mean log-probability. Needs confluent-kafka and zstandard.

python with_confluent_kafka.py localhost:9092
"""

import base64
import json
import sys
from array import array
from typing import Any

import zstandard
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

MAX_BYTES = 16 << 20  # Largest decoded array: a limit against decompression bombs.


def decoded(text: str | None, typecode: str) -> "array[Any]":
    """Decode a token array: base64 of little-endian int32 (i), float32 (f) or int8 (b); compressed after ``zstd:``."""
    raw = base64.b64decode((text or "").removeprefix("zstd:"))
    if text and text.startswith("zstd:"):
        if not 0 <= zstandard.frame_content_size(raw) <= MAX_BYTES:
            raise ValueError(f"an array of {zstandard.frame_content_size(raw)} bytes")
        raw = zstandard.ZstdDecompressor().decompress(raw)
    values = array(typecode, raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def line(trajectory_id: str, value: bytes) -> str:
    """Returns the line to print for a trajectory."""
    segments = json.loads(value)["segments"]
    logprobs = [each for segment in segments for each in decoded(segment["logprobs"], "f")]
    sampled = sum(sum(decoded(segment["loss_mask"], "b")) for segment in segments)
    mean = f"{sum(logprobs) / len(logprobs):.4f}" if logprobs else "none"
    return f"{trajectory_id} {sampled} tokens, mean log-prob {mean}"


def main(bootstrap: str) -> None:
    """Read to the current end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "example",  # Required, although partitions are assigned manually and nothing is committed.
            "enable.auto.commit": False,
            "enable.partition.eof": True,  # The end of a partition is reported as an event.
            "isolation.level": "read_committed",  # librdkafka's default, given here for clarity.
        }
    )
    lines = {}  # By ce_id: records with equal ids are duplicates.
    try:
        open_partitions = set(consumer.list_topics("trajectories", 10).topics["trajectories"].partitions)
        consumer.assign([TopicPartition("trajectories", number, OFFSET_BEGINNING) for number in open_partitions])
        while open_partitions:
            record = consumer.poll(1.0)
            if record is None:
                continue
            error = record.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(record.partition())
            elif error is not None:
                raise KafkaException(error)
            else:
                headers: dict[str, Any] = dict(record.headers() or ())
                if headers["ce_type"] == b"headrace.trajectory.assembled.v1":
                    lines[headers["ce_id"]] = line(headers["ce_subject"].decode(), record.value() or b"")
    finally:
        consumer.close()
    print("\n".join(sorted(lines.values())))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} HOST:PORT")
    main(sys.argv[1])
