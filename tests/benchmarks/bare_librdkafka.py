"""Reads ``events`` with confluent-kafka and discards them: python bare_librdkafka.py BOOTSTRAP GROUP. Runs until
killed."""

import sys

from confluent_kafka import Consumer

bootstrap, group = sys.argv[1:]
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 50,
        # The client waits a second before it fetches again once its queue was full.
        "fetch.queue.backoff.ms": 2,
    }
)
consumer.subscribe(["events"])
while True:
    consumer.consume(500, timeout=0.2)
