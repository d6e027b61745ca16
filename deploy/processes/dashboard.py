"""The dashboard: web pages with data from ClickHouse."""

from typing import TYPE_CHECKING

from headrace.deploy.processes.process import Flow, Process
from headrace.deploy.system.ports import HOST

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings


def _run(settings: "Settings") -> int:
    from headrace.deploy.dashboard.server import serve_dashboard
    from headrace.deploy.dashboard.sharing import key_file
    from headrace.deploy.system.notify import notify_ready

    port = settings.required_port("dashboard_port")
    url, secrets = settings.required_address("clickhouse"), settings.clickhouse_secrets
    serve_dashboard(
        url,
        secrets=secrets,
        kafka=settings.kafka,
        objects=settings.objects,
        gateway=f"http://{HOST}:{settings.gateway_port}" if settings.gateway_port else None,
        share_key=key_file(settings.data),
        host=HOST,
        port=port,
        ready=notify_ready,
    )
    return 0


def _flow() -> Flow:
    from headrace.schemas.topics import ALERTS

    return Flow(writes=(ALERTS,))  # acknowledgements, by people


DASHBOARD = Process(
    "dashboard",
    "web pages on ClickHouse data",
    flow=_flow,
    run=_run,
    settings=("clickhouse", "dashboard_port"),
    needs=("clickhouse",),
    ports=("dashboard_port",),
    url=f"http://{HOST}:{{port}}",
)
