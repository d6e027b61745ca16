"""Serves HTTP from a worker: on loopback only, with a readiness signal and a clean end on SIGTERM and SIGINT."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from headrace.deploy.errors import StackError
from headrace.deploy.system.ports import is_free


class _Server(uvicorn.Server):
    """A server that calls ``ready`` once it accepts connections."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would raise the signal again after serving. That would end the process before the application's
        # resources are closed, and with an exit status that a supervisor takes for a crash.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def require_loopback(host: str) -> None:
    """Raise :class:`StackError` unless ``host`` is a loopback address."""
    with contextlib.suppress(ValueError):
        if ip_address(host).is_loopback:
            return
    if host != "localhost":
        raise StackError(f"cannot listen on {host}: there is no access control, so use 127.0.0.1 or ::1")


def serve(app: ASGIApp, *, host: str, port: int, ready: Callable[[], None], graceful_s: int = 10) -> None:
    """Serve ``app`` until SIGTERM or SIGINT, then give open requests ``graceful_s`` seconds. Blocks.

    uvicorn sets TCP_NODELAY, so small responses do not wait for the client's delayed acknowledgement. Raises
    :class:`StackError` if the server cannot listen on the address.
    """
    require_loopback(host)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=graceful_s,
        server_header=False,
        lifespan="on",
    )
    server = _Server(config, ready)
    try:
        asyncio.run(server.serve())
    except SystemExit as error:  # uvicorn exits if it cannot bind, and has logged the reason.
        if is_free(port):
            raise StackError(f"the application on {host}:{port} did not start: see the log above") from error
        raise StackError(f"cannot listen on {host}:{port}: choose another port or stop what uses it") from error
    if not server.started:
        raise StackError(f"the application on {host}:{port} did not start: see the log above")
