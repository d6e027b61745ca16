"""Readiness by sd_notify."""

import asyncio
import socket

import pytest

from headrace.deploy.system.notify import NOTIFY_SOCKET, ReadySocket, notify_ready


async def test_a_worker_that_says_ready_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    with ReadySocket() as said:
        monkeypatch.setenv(NOTIFY_SOCKET, said.env[NOTIFY_SOCKET])
        notify_ready()
        await asyncio.wait_for(said.ready(), 5)
    assert not said.path.exists()


async def test_other_news_is_not_readiness() -> None:
    with ReadySocket() as said, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"STATUS=READY=1 soon", str(said.path))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(said.ready(), 0.1)
        sender.sendto(b"STATUS=up\nREADY=1", str(said.path))
        await asyncio.wait_for(said.ready(), 5)


def test_without_a_socket_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NOTIFY_SOCKET, raising=False)
    notify_ready()


def test_abstract_names_of_systemd_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0headrace-test-notify")
        monkeypatch.setenv(NOTIFY_SOCKET, "@headrace-test-notify")
        notify_ready()
        listener.settimeout(5)
        assert listener.recv(100) == b"READY=1"
