"""The table of prices is that of the sink's setting."""

import pytest

from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables, set_prices
from headrace.streams.clickhouse.sink_config import SinkConfig


@pytest.mark.clickhouse
def test_prices_are_replaced_and_without_any_the_table_stays(clickhouse: str) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    shown = "SELECT model, per_million_prompt, per_million_completion, currency FROM prices FINAL ORDER BY model"
    for prices in ({"small": [0.1, 0.4], "large": [2, 8]}, {"small": [0.2, 0.8]}, {}, {"small": [0.2, 0.8]}):
        set_prices(client, prices, "EUR")
    assert client.query(shown).result_rows == [("small", 0.2, 0.8, "EUR")]


@pytest.mark.parametrize("prices", [[0.1], [0.1, -1], [0.1, float("nan")], [1, 2, 3]])
def test_prices_that_are_not_two_numbers_are_refused_with_the_setting(prices: list[float]) -> None:
    with pytest.raises(ValueError, match=r"the sink's setting prices has .* for 'small': give two numbers"):
        SinkConfig("k", "http://c", prices={"small": prices})


def test_a_currency_and_a_cluster_must_be_names() -> None:
    with pytest.raises(ValueError, match="setting currency must not be empty"):
        SinkConfig("k", "http://c", currency=" ")
    with pytest.raises(ValueError, match="setting cluster is 'a`b'"):
        SinkConfig("k", "http://c", cluster="a`b")
