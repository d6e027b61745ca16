"""Every trajectory with its sampled tokens and their mean log-probability. Needs aiokafka[lz4,zstd] and zstandard.

python with_aiokafka.py localhost:9092
"""

import asyncio
import base64
import json
import sys
from array import array
from typing import Any

import zstandard
from aiokafka import AIOKafkaConsumer, TopicPartition

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


async def main(bootstrap: str) -> None:
    """Read to the current end."""
    consumer = AIOKafkaConsumer(
        "trajectories",
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",  # The default also returns aborted records.
    )
    lines = {}  # By ce_id: records with equal ids are duplicates.
    await consumer.start()
    try:
        partitions = [TopicPartition("trajectories", n) for n in consumer.partitions_for_topic("trajectories") or ()]
        for partition, end in (await consumer.end_offsets(partitions)).items():
            while await consumer.position(partition) < end:
                for record in (await consumer.getmany(partition, timeout_ms=1000)).get(partition, ()):
                    headers = dict(record.headers)
                    if headers["ce_type"] == b"headrace.trajectory.assembled.v1":
                        lines[headers["ce_id"]] = line(headers["ce_subject"].decode(), record.value or b"")
    finally:
        await consumer.stop()
    print("\n".join(sorted(lines.values())))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} HOST:PORT")
    asyncio.run(main(sys.argv[1]))
