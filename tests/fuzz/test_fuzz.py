"""The fuzz test in a short form; ``python -m tests.fuzz --records 1000000`` is the long one."""

import pytest

from tests.fuzz.generate import cases
from tests.fuzz.pipeline import FOLD, Pipeline
from tests.fuzz.run import fuzz
from tests.streams.builders import T0, session


@pytest.mark.parametrize("seed", [1, 2])
def test_every_trajectory_has_a_fate_for_any_input(seed: int) -> None:
    report = fuzz(seed, 8_000)
    assert report.records >= 8_000
    assert report.counts["trained"] > 0
    assert {name.split()[-1] for name in report.counts if name.startswith("dead")} >= {
        "bad_json", "bad_headers", "invalid", "unknown_type", "null_value", "late",
    }  # fmt: skip


def test_a_seed_determines_the_cases() -> None:
    def first(seed: int) -> list[object]:
        made = cases(seed)
        return [(case.kind, case.records) for case, _ in zip(made, range(50), strict=False)]

    assert first(5) == first(5) != first(6)


async def test_an_id_repeated_after_the_assembler_forgot_it_has_no_second_fate() -> None:
    """The trajectory is in ``trajectories`` twice. Group still remembers its ID and treats it as a repetition."""
    pipeline = Pipeline()
    names = ["again", *(f"other-{number}" for number in range(FOLD.remember + 10)), "again"]
    for number, name in enumerate(names):
        await pipeline.send(session(name, "ask", "tool", "answer", time_ms=T0 + 100 * number))
    await pipeline.finish()
    assert pipeline.counts["trajectories"] == len(names)
    assert pipeline.counts["rejected"] == len(names) - 1
    assert pipeline.counts["repeated"] == 1
