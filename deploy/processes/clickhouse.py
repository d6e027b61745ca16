"""The embedded ClickHouse."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.deploy.processes.external import answers_over_http
from headrace.deploy.processes.process import Process
from headrace.deploy.system.ports import HOST

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings


def _run(settings: "Settings") -> int:
    from headrace.deploy.clickhouse.server import serve_clickhouse
    from headrace.deploy.system.data_folder import make_folder
    from headrace.deploy.system.notify import notify_ready

    port = settings.required_port("clickhouse_port")
    make_folder(settings.data)
    secrets = settings.secrets_of_embedded
    serve_clickhouse(settings.data / "clickhouse", secrets=secrets, host=HOST, port=port, ready=notify_ready)
    return 0


def _provides(settings: "Settings") -> Mapping[str, Any]:
    """Returns the folder of the passwords that the engine creates; sink and dashboard log in with them."""
    return {"clickhouse_secrets": settings.secrets_of_embedded}


CLICKHOUSE = Process(
    "clickhouse",
    "embedded engine behind HTTP",
    feeds=(("dashboard", "answers"),),
    run=_run,
    settings=("clickhouse_port",),
    ports=("clickhouse_port",),
    url=f"http://{HOST}:{{port}}",
    external=answers_over_http("clickhouse", "/ping"),
    provides=_provides,
    memory_mb=600,
)
