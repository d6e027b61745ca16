"""Results of queries as rows by column name, in JSON's types.

[{"trajectory_id": "t-1", "total": 0.5, "components": {"f_beta": 0.8}}]
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

RowDict: TypeAlias = dict[str, Any]


def rows(client: "Client", sql: str, **parameters: Any) -> list[RowDict]:
    """Returns the rows of ``sql``; numbers that are not finite, which JSON lacks, are ``None``. Raises the client's
    ``ClickHouseError``.
    """
    result = client.query(sql, parameters=parameters)
    return [
        {name: _plain(value) for name, value in zip(result.column_names, row, strict=True)}
        for row in result.result_rows
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
