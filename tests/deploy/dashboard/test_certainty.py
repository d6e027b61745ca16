"""Means with intervals, over rows that a query writes out."""

from collections.abc import Iterator
from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from headrace.deploy.dashboard.certainty import Z, clustered_mean
from headrace.streams.clickhouse.database import open_client

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = pytest.mark.clickhouse

NONE_FAILED = [[0, 0], [0, 0], [0, 0]]
ALL_FAILED = [[1], [1], [1], [1]]
FEW_FAILED = [[0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
ALIKE_IN_CLUSTERS = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
ALL_CLUSTERS_THE_SAME = [[0, 1], [1, 0], [0, 1]]


@pytest.fixture(scope="module")
def client(clickhouse: str) -> Iterator["Client"]:
    client = open_client(clickhouse)
    yield client
    client.close()


def measured(client: "Client", clusters: list[list[int]], *, share: bool) -> tuple[float, float | None, float | None]:
    """Returns mean, low and high of the values of ``clusters``."""
    rows = ", ".join(f"({number}, {value})" for number, values in enumerate(clusters) for value in values)
    query = f"SELECT 'x' AS series, row.1 AS cluster, row.2 AS value FROM (SELECT arrayJoin([{rows}]) AS row)"
    ((_, mean, low, high, n, count),) = client.query(
        clustered_mean(query, "series", "mean", "n", share=share)
    ).result_rows
    assert (n, count) == (sum(map(len, clusters)), len(clusters))
    return mean, low, high


def error_of(clusters: list[list[int]]) -> float:
    """Returns the clustered standard error, by the residuals of each cluster."""
    values = [value for each in clusters for value in each]
    residuals = [sum(value - fmean(values) for value in each) for each in clusters]
    return sqrt(sum(each**2 for each in residuals) * len(clusters) / (len(clusters) - 1)) / len(values)


def size_of(clusters: list[list[int]]) -> float:
    """Returns the number of independent values that are as certain as those of ``clusters``."""
    values, error = [value for each in clusters for value in each], error_of(clusters)
    return min(fmean(values) * (1 - fmean(values)) / error**2, len(values)) if error else len(clusters)


@pytest.mark.parametrize(
    "clusters", [NONE_FAILED, ALL_FAILED, FEW_FAILED, ALIKE_IN_CLUSTERS, ALL_CLUSTERS_THE_SAME], ids=str
)
def test_the_ends_of_a_shares_interval_are_the_shares_that_the_mean_is_just_not_too_far_from(
    client: "Client", clusters: list[list[int]]
) -> None:
    mean, low, high = measured(client, clusters, share=True)
    assert low is not None
    assert high is not None
    assert 0 <= low <= mean <= high <= 1
    assert high - low > 0.1
    for end in {low, high} - {mean}:
        assert (mean - end) ** 2 == pytest.approx(Z**2 * end * (1 - end) / size_of(clusters))


def test_the_interval_of_any_other_mean_is_as_wide_on_both_sides(client: "Client") -> None:
    mean, low, high = measured(client, FEW_FAILED, share=False)
    half = Z * error_of(FEW_FAILED)
    assert low == pytest.approx(mean - half)
    assert high == pytest.approx(mean + half)
    assert half > mean


@pytest.mark.parametrize("share", [False, True])
def test_a_single_cluster_has_no_interval(client: "Client", *, share: bool) -> None:
    assert measured(client, [[0, 1, 1, 1]], share=share) == (0.75, None, None)
