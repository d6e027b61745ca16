"""When the runner of a partition makes its transactions: on a clock of the test, without a broker."""

from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.streams.assembly import partition_runner
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition_runner import PartitionRunner, RunnerConfig, interval_s

READ_S = 0.01
"""What each look for new records takes."""


@pytest.mark.parametrize(
    ("shortest_s", "last_s", "expected_s"),
    [(0.2, 0.005, 0.2), (0.2, 0.04, 0.2), (0.2, 0.08, 0.4), (0.2, 3.0, 1.0), (2.0, 0.08, 2.0), (2.0, 3.0, 2.0)],
)
def test_the_interval_is_five_times_the_last_transaction_up_to_a_second(
    shortest_s: float, last_s: float, expected_s: float
) -> None:
    assert interval_s(shortest_s, last_s) == pytest.approx(expected_s)


class Partition:
    """The clock, and what the runner reads from, assembles with and writes to."""

    def __init__(self, takes_s: list[float], *, large_at: int = -1, silent_after: int | None = None) -> None:
        self.now_s = 100.0
        self.begun: list[float] = []
        self.position = self.reads = self.pending_bytes = 0
        self.pending: list[Any] = []
        self.fold = SimpleNamespace(deadline_ms=None)
        self._takes_s, self._large_at, self._silent_after = takes_s, large_at, silent_after
        config = RunnerConfig("localhost:9092", "assemble", 0.2, FoldLimits())
        consumer: Any = None
        self.runner = PartitionRunner(config, consumer, 0)

    def monotonic(self) -> float:
        return self.now_s

    def read(self) -> list[Any]:
        self.reads += 1
        self.now_s += READ_S
        if self._silent_after is None or self.reads <= self._silent_after:
            self.position += 1
        if len(self.begun) == len(self._takes_s) - 1 and self._silent_after is None:
            self.runner.stop()  # the last transaction is that of the end
        elif self.reads == 1000:
            self.runner.stop()
        return []

    def take_all(self, records: list[Any]) -> Iterator[None]:
        if self.reads == self._large_at:
            self.pending_bytes = partition_runner._PENDING_BYTES + 1
            yield
            self.pending_bytes = 0

    async def transact(self, work: Callable[[Any], Awaitable[None]], *, within_s: float, what: str) -> None:
        self.begun.append(self.now_s)
        self.now_s += self._takes_s[len(self.begun) - 1]

    async def assembled(self) -> list[float]:
        """Seconds between the beginnings of the transactions."""
        this: Any = self
        await self.runner._assemble(this, this, this)
        return [later - earlier for earlier, later in zip(self.begun, self.begun[1:], strict=False)]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_runner, "_IDLE_S", 0.0)


def partition(monkeypatch: pytest.MonkeyPatch, takes_s: list[float], **changes: Any) -> Partition:
    made = Partition(takes_s, **changes)
    monkeypatch.setattr(partition_runner, "time", SimpleNamespace(monotonic=made.monotonic, time_ns=lambda: 0))
    return made


async def test_the_interval_follows_from_what_the_last_transaction_took(monkeypatch: pytest.MonkeyPatch) -> None:
    takes_s = [0.005, 0.08, 0.16, 0.005, 0.5, 3.0, 0.005, 0.0, 0.0]
    gaps = await partition(monkeypatch, takes_s).assembled()
    # After one that took longer than the longest interval, the next begins at once; at the end it does not wait.
    expected = [0.2, 0.4, 0.8, 0.2, 1.0, 3.0, 0.2, READ_S]
    assert gaps == pytest.approx(expected, abs=1.5 * READ_S)


async def test_large_output_is_committed_within_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = await partition(monkeypatch, [0.16, 0.16, 0.0], large_at=31).assembled()
    assert gaps[0] == pytest.approx(30 * READ_S + 0.16)  # and not 0.8


async def test_what_arrives_after_a_silence_waits_for_the_shortest_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    made = partition(monkeypatch, [0.16, 0.16], silent_after=1)
    gaps = await made.assembled()
    assert (made.begun, gaps) == ([100 + READ_S], [])  # nothing to commit: no transaction, also not at the end
    made = partition(monkeypatch, [0.16, 0.16, 0.0], silent_after=1)
    read = made.read

    def read_once_more() -> list[Any]:
        made.position += made.reads == 500
        return read()

    monkeypatch.setattr(made, "read", read_once_more)
    assert await made.assembled() == pytest.approx([500 * READ_S + 0.16], abs=0.2 + READ_S)
