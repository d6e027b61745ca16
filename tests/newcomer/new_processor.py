"""Run in a tree to which `histogram` was added: the task rewards of two driven trajectories, as JSON."""

import json
import sys

from headrace.streams.drive import drive
from headrace.streams.topology import TOPOLOGY
from tests.streams.test_drive import group_of


def main() -> None:
    records = drive(TOPOLOGY, group_of(1.0, 0.25))["task-rewards"]
    json.dump([record.model_dump(mode="json") for record in records], sys.stdout)


if __name__ == "__main__":
    main()
