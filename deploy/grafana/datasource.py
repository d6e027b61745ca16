"""The data source of the dashboards and alert rules: the official ClickHouse plugin."""

from typing import Any

TYPE = "grafana-clickhouse-datasource"
"""Id of the plugin, version 4."""
UID = "headrace-clickhouse"
"""Fixed, so that dashboards and rules find it."""

REFERENCE = {"type": TYPE, "uid": UID}

TIME_SERIES, TABLE = (0, "timeseries"), (1, "table")
"""Format and query type of a query's result."""


def query(sql: str, kind: tuple[int, str] = TABLE) -> dict[str, Any]:
    """Returns ``sql`` as a query of the plugin's editor, with the result as ``kind``."""
    result_format, query_type = kind
    return {
        "refId": "A",
        "datasource": REFERENCE,
        "editorType": "sql",
        "pluginVersion": "4.0.0",
        "queryType": query_type,
        "format": result_format,
        "rawSql": sql,
    }


def provisioning() -> dict[str, Any]:
    """Returns Grafana's file that declares the data source; Grafana reads the address from its own environment."""
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "headrace",
                "uid": UID,
                "type": TYPE,
                "access": "proxy",
                "editable": False,
                "jsonData": {
                    "host": "$HEADRACE_CLICKHOUSE_HOST",
                    "port": "$HEADRACE_CLICKHOUSE_PORT",
                    "protocol": "http",
                    "defaultDatabase": "$HEADRACE_CLICKHOUSE_DATABASE",
                    "username": "$HEADRACE_CLICKHOUSE_USER",
                },
                "secureJsonData": {"password": "$HEADRACE_CLICKHOUSE_PASSWORD"},
            }
        ],
    }
