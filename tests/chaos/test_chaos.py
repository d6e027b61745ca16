"""Every kind of fault on a real Kafka in a minute: nothing is lost or doubled, and every byte matches the batch.

The long form is a command: ``python -m tests.chaos --seed 3 --events 200000 --report DIR``.
"""

import logging
from pathlib import Path

import pytest

from tests.chaos.faults import Kind
from tests.chaos.plan import Plan
from tests.chaos.report import write_report
from tests.chaos.run import run_chaos

PLAN = Plan(seed=7, events=12_000, per_s=400, gap_s=1.2, idle_timeout_s=5.0)


@pytest.mark.kafka
async def test_under_every_kind_of_fault_the_log_matches_the_batch(tmp_path: Path) -> None:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    outcome = await run_chaos(PLAN, tmp_path / "rig", print)
    write_report(outcome, tmp_path / "report")
    print((tmp_path / "report" / "report.md").read_text())
    assert outcome.problems == []
    assert set(outcome.by_kind) == set(Kind)
    assert outcome.fenced
    assert outcome.verdict.trajectories.expected > 500
    assert outcome.verdict.dead_letters.expected > 50
