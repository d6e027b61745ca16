"""The assembly on Quix Streams: a trajectory's events are kept in state until its end, then written as one record.

    python quix_assembly.py BOOTSTRAP GROUP OUTPUT FORM COMMIT_S FOLDER

Runs in a separate environment, see ``peers.py``. Exactly once; there is no rule for gaps, duplicates, late events or
timeouts. FORM selects the implementation: ``json``, as in its guide, with events parsed and written by Quix itself and
one list per trajectory in state; ``list``, the same with unparsed bytes; ``keys``, bytes with one key per event, the
fastest form that was found.
"""

import sys
from pathlib import Path
from typing import Any

from quixstreams import Application, State

ENDED = b"headrace.trajectory.ended.v1"


def assemble_list(value: bytes, _key: Any, _time: int, headers: list[tuple[str, bytes]], state: State) -> bytes | None:
    """All events of the trajectory if ``value`` is its last, else ``None``."""
    events = state.get("events", [])
    events.append(value.decode())
    if dict(headers)["ce_type"] != ENDED:
        state.set("events", events)
        return None
    state.delete("events")
    return "".join(events).encode()


def assemble_json(
    value: dict[str, Any], _key: Any, _time: int, headers: list[tuple[str, bytes]], state: State
) -> dict[str, Any] | None:
    """The same with every event parsed."""
    events = state.get("events", [])
    events.append(value)
    if dict(headers)["ce_type"] != ENDED:
        state.set("events", events)
        return None
    state.delete("events")
    return {"events": events}


def assemble_keys(value: bytes, _key: Any, _time: int, headers: list[tuple[str, bytes]], state: State) -> bytes | None:
    """The same with one state key per event."""
    attributes = dict(headers)
    sequence = int(attributes["ce_sequence"])
    if attributes["ce_type"] != ENDED:
        state.set_bytes(sequence, value)
        return None
    earlier = [state.get_bytes(number) or b"" for number in range(sequence)]
    for number in range(sequence):
        state.delete(number)
    return b"".join([*earlier, value])


FORMS = {"json": assemble_json, "list": assemble_list, "keys": assemble_keys}


def main() -> None:
    """Run until killed."""
    bootstrap, group, output, form, commit_s, folder = sys.argv[1:]
    app = Application(
        bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=float(commit_s),
        state_dir=Path(folder),
        # librdkafka waits a second before it fetches again after its queue was full.
        consumer_extra_config={"fetch.queue.backoff.ms": 2, "group.instance.id": group},
        producer_extra_config={"linger.ms": 20, "batch.size": 256 * 1024},
    )
    payload = "json" if form == "json" else "bytes"
    trajectories = app.topic(output, key_serializer="bytes", value_serializer=payload)
    frame = app.dataframe(app.topic("events", key_deserializer="bytes", value_deserializer=payload))
    frame = frame.apply(FORMS[form], stateful=True, metadata=True)
    frame = frame.filter(lambda trajectory: trajectory is not None)
    frame.to_topic(trajectories)
    app.run()


if __name__ == "__main__":
    main()
