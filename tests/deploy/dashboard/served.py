"""Serves a dashboard for a test."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from headrace.deploy.dashboard.server import dashboard_app
from headrace.deploy.system.ports import HOST


@contextmanager
def served(clickhouse_url: str, **options: Any) -> Iterator[str]:
    """Run the dashboard in a thread of this process, with ten refreshes per second. ``options``: of its app."""
    app = dashboard_app(clickhouse_url, refresh_s=0.1, **options)
    server = uvicorn.Server(uvicorn.Config(app, host=HOST, log_config=None, lifespan="on", timeout_graceful_shutdown=1))
    listener = socket.create_server((HOST, 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
