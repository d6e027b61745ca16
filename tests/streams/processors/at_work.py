"""Score on one partition in memory, by the code that runs live."""

from collections.abc import Collection

from headrace.schemas.kafka.read_back import Place
from headrace.schemas.topics import TRAJECTORIES, Topic
from headrace.streams.processors.score import restore_score
from headrace.streams.processors.score_hook import decide_due
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import MemoryPartition, run_to_end
from headrace.streams.runtime.processor import Outside, Start
from headrace.streams.runtime.runtime import Runtime


class AtWork:
    """Score on ``partition``, without judges."""

    def __init__(self, rewards: Rewards, partition: int = 0) -> None:
        rules = Rules(rewards)
        operator, _ = restore_score(rules, Start())
        self.join, self.partition = operator.join, MemoryPartition()
        self._number = partition
        self._known: dict[Place, StoredRecord] = {}
        self._runtime = Runtime("/streams/score", decide_due(rules, Outside(self._read_back)))
        self._runtime.assign(partition, operator, self.partition)

    def take(self, *records: StoredRecord) -> list[Outgoing]:
        """Process ``records`` in one batch; returns what score writes."""
        self._known |= {(each.partition, each.offset): each for each in records if each.topic == TRAJECTORIES.name}
        run_to_end(self._runtime.process(records))
        return self.partition.written()

    def advance(self, now_ms: int) -> list[Outgoing]:
        """What is due at ``now_ms``."""
        run_to_end(self._runtime.advance({self._number: now_ms}))
        return self.partition.written()

    async def _read_back(self, topic: Topic, places: Collection[Place]) -> dict[Place, StoredRecord]:
        return {place: self._known[place] for place in places}
