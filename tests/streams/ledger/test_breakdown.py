"""The columns of every breakdown of the ledger sum to its totals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.commands.ledger import table_by
from headrace.streams.ledger.breakdown import BreakdownRow, By, breakdown
from headrace.streams.ledger.tally import LedgerTally
from tests.streams.fates import CIRCLE, Sent, assembled, event


def tally_of(*sent: Sent) -> LedgerTally:
    tally = LedgerTally()
    for topic, message in sent:
        tally.add(topic.name, dict(message.headers), message.value)
    return tally


def rows(by: By, *sent: Sent) -> dict[str, tuple[int, int, int]]:
    found = breakdown(tally_of(*sent).accounts.values(), by)
    return {key: (row.trained, row.rejected, row.pending) for key, row in found.items()}


def test_every_key_has_its_trained_rejected_and_pending() -> None:
    assert rows(By.VERSION, *CIRCLE) == {"3": (1, 2, 3), "unknown": (0, 0, 2)}
    assert rows(By.STAGE, *CIRCLE) == {
        "admission": (0, 1, 0),
        "group": (0, 1, 0),
        "open": (0, 0, 2),
        "trained": (1, 0, 0),
        "ungrouped": (0, 0, 1),
        "unscored": (0, 0, 1),
        "untrained": (0, 0, 1),
    }
    assert rows(By.REASON, *CIRCLE) == {
        "none": (1, 0, 5),
        "stale": (0, 1, 0),
        "zero_variance_all_fail": (0, 1, 0),
    }
    assert rows(By.STEP, *CIRCLE) == {"none": (0, 2, 5), "r/2": (1, 0, 0)}
    assert set(rows(By.TASK, *CIRCLE)) == {"q", "unknown"}
    assert set(rows(By.AGENT, *CIRCLE)) == {"a", "unknown"}


def test_a_trajectory_that_is_open_has_the_task_of_its_start() -> None:
    assert rows(By.TASK, event("t")) == {"q": (0, 0, 1)}
    assert rows(By.VERSION, event("t")) == {"unknown": (0, 0, 1)}


def test_an_unscored_trajectory_has_the_version_of_its_tokens() -> None:
    assert rows(By.VERSION, event("t"), assembled("t", version=12)) == {"12": (0, 0, 1)}
    assert rows(By.VERSION, event("t"), assembled("t", version=None)) == {"unknown": (0, 0, 1)}


def test_a_version_of_another_run_is_not_counted_for_its_run() -> None:
    topic, message = assembled("t", version=12)
    value = message.value.replace(b'"run":null', b'"run":"another"', 1)
    assert value != message.value
    assert rows(By.VERSION, event("t"), (topic, replace(message, value=value))) == {"unknown": (0, 0, 1)}


def test_versions_are_in_numeric_order() -> None:
    sent = [each for n in (10, 9, 100) for each in (event(f"t{n}"), assembled(f"t{n}", version=n))]
    assert list(rows(By.VERSION, *sent)) == ["9", "10", "100"]


@pytest.mark.parametrize("by", By)
@given(chosen=st.lists(st.sampled_from(CIRCLE), max_size=40))
def test_columns_sum_up_to_the_totals(by: By, chosen: list[Sent]) -> None:
    tally = tally_of(*chosen)
    total = tally.ledger()
    found = breakdown(tally.accounts.values(), by).values()
    assert sum(row.trained for row in found) == total.trained
    assert sum(row.rejected for row in found) == total.rejected
    assert sum(row.pending for row in found) == total.pending


def test_the_table_ends_with_the_totals_and_the_verdict() -> None:
    tally = tally_of(*CIRCLE)
    shown = table_by(
        "version", {"3": BreakdownRow(1, 2, 3), "unknown": BreakdownRow(0, 0, 2)}, tally.ledger().as_dict()
    )
    assert [line.split() for line in shown] == [
        ["version", "trained", "rejected", "pending"],
        ["3", "1", "2", "3"],
        ["unknown", "0", "0", "2"],
        ["total", "1", "2", "5"],
        ["It", "adds", "up:", "8."],
    ]
