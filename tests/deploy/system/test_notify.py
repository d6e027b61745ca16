"""Readiness by sd_notify."""

import asyncio
import socket

import pytest

from headrace.deploy.system.notify import NOTIFY_SOCKET, ReadySocket, notify_ready


async def test_a_worker_can_signal_that_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    with ReadySocket() as ready_socket:
        monkeypatch.setenv(NOTIFY_SOCKET, ready_socket.env[NOTIFY_SOCKET])
        notify_ready()
        await asyncio.wait_for(ready_socket.ready(), 5)
    assert not ready_socket.path.exists()


async def test_other_messages_do_not_signal_readiness() -> None:
    with ReadySocket() as ready_socket, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"STATUS=READY=1 soon", str(ready_socket.path))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ready_socket.ready(), 0.1)
        sender.sendto(b"STATUS=up\nREADY=1", str(ready_socket.path))
        await asyncio.wait_for(ready_socket.ready(), 5)


def test_without_a_socket_no_signal_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NOTIFY_SOCKET, raising=False)
    notify_ready()


def test_abstract_socket_names_of_systemd_are_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0headrace-test-notify")
        monkeypatch.setenv(NOTIFY_SOCKET, "@headrace-test-notify")
        notify_ready()
        listener.settimeout(5)
        assert listener.recv(100) == b"READY=1"
