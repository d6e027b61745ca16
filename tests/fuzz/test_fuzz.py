"""The fuzz test in a short form; ``python -m tests.fuzz --records 1000000`` is the long one."""

import pytest

from tests.fuzz.generate import cases
from tests.fuzz.run import fuzz


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_sent_every_trajectory_has_its_fate(seed: int) -> None:
    report = fuzz(seed, 8_000)
    assert report.records >= 8_000
    assert report.counts["trained"] > 0
    assert {name.split()[-1] for name in report.counts if name.startswith("dead")} >= {
        "bad_json", "bad_headers", "invalid", "unknown_type", "null_value", "late",
    }  # fmt: skip


def test_a_seed_says_what_is_sent() -> None:
    def first(seed: int) -> list[object]:
        made = cases(seed)
        return [(case.kind, case.records) for case, _ in zip(made, range(50), strict=False)]

    assert first(5) == first(5) != first(6)
