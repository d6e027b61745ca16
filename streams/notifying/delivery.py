"""Delivers notices to a webhook, Alertmanager, a mail server or the log.

A delivery either succeeds, or raises :class:`NotDelivered` and is to be tried again, or :class:`Refused`: the other
side does not take this notice, now or later.
"""

import asyncio
import logging
import smtplib
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import aiohttp

from headrace.streams.notifying.formats import Notice, alertmanager, email, log_line, webhook

logger = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_S = 10.0
"""Longest time of one attempt, in seconds."""
_REFUSED = (400, 413, 415, 422)
"""Statuses by which a server says that it will never take this request."""


class NotDelivered(Exception):
    """The other side did not take the notice; a later attempt may succeed."""


class Refused(Exception):
    """The other side will not take this notice."""


class Sink(Protocol):
    """Where notices go."""

    @property
    def name(self) -> str:
        """Its name: in consumer groups, logs and metrics."""

    async def deliver(self, notice: Notice) -> None:
        """Deliver ``notice``; raises :class:`NotDelivered` or :class:`Refused`."""


def _written(write: Callable[[Notice], T], notice: Notice) -> T:
    """Returns ``notice`` as ``write`` writes it. One that cannot be written is refused: as an error of the process it
    would be read again after each restart, and no sink would get any later alert.
    """
    try:
        return write(notice)
    except Exception as error:
        raise Refused(f"it cannot be written: {type(error).__name__}: {error}") from error


class Http:
    """A server that takes JSON by POST."""

    def __init__(self, name: str, url: str, *, token: str | None = None) -> None:
        """``token``: sent as a bearer token."""
        self.name = name
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def deliver(self, notice: Notice) -> None:
        """Deliver ``notice``."""
        body = _written(self._body, notice)
        if body is not None:
            await self._post(body)

    async def _post(self, body: Any) -> None:
        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.post(self._url, json=body, allow_redirects=False) as answer,
            ):
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NotDelivered(f"{type(error).__name__}: {error}") from error
        if status in _REFUSED:
            raise Refused(f"status {status}")
        if not 200 <= status < 300:
            raise NotDelivered(f"status {status}")

    def _body(self, notice: Notice) -> Any:
        return webhook(notice)


class Alertmanager(Http):
    """Alertmanager's API, at ``URL/api/v2/alerts``."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """``url``: of Alertmanager, without a path of its API."""
        super().__init__("alertmanager", f"{url.rstrip('/')}/api/v2/alerts", token=token)

    def _body(self, notice: Notice) -> Any:
        alert = alertmanager(notice)
        return None if alert is None else [alert]

    async def repeat(self, opened: Sequence[Notice], now_ms: int) -> None:
        """Deliver the open episodes of ``opened`` again, as of ``now_ms`` (Unix milliseconds). Raises
        :class:`NotDelivered` or :class:`Refused`.
        """
        bodies = []
        for notice in opened:
            with suppress(Refused):
                bodies += _written(self._body, replace(notice, time_ms=max(now_ms, notice.time_ms)))
        if bodies:
            await self._post(bodies)


class Mail:
    """A mail server, by SMTP."""

    name = "mail"

    def __init__(
        self,
        host: str,
        port: int,
        sender: str,
        recipients: tuple[str, ...],
        *,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``tls``: with which the connection is encrypted, and the server's certificate checked, before anything is
        sent; required for a password."""
        self._server = (host, port)
        self._sender, self._recipients = sender, recipients
        self._user, self._password = user, password
        self._tls = tls

    async def deliver(self, notice: Notice) -> None:
        """Deliver ``notice`` to all recipients. A permanent error (5xx) of every recipient or of the content refuses
        it; everything else is tried again.
        """
        await asyncio.to_thread(self._send, notice)

    def _send(self, notice: Notice) -> None:
        mail = _written(lambda each: email(each, self._sender, self._recipients), notice)
        try:
            with smtplib.SMTP(*self._server, timeout=TIMEOUT_S) as server:
                if self._tls is not None:
                    server.starttls(context=self._tls)
                if self._user is not None and self._password is not None:
                    server.login(self._user, self._password)
                refused = server.send_message(mail)
        except smtplib.SMTPDataError as error:
            kind = Refused if error.smtp_code >= 500 else NotDelivered
            raise kind(f"SMTP {error.smtp_code}") from error
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            raise (Refused if min(codes) >= 500 else NotDelivered)(f"recipients refused: SMTP {codes}") from error
        except ssl.SSLCertVerificationError as error:
            raise NotDelivered(f"the mail server's certificate: {error.verify_message} (smtp_ca_file)") from error
        except (smtplib.SMTPException, OSError) as error:
            raise NotDelivered(f"{type(error).__name__}: {error}") from error
        if refused:
            logger.warning("the mail server refused some recipients: %s", sorted(refused))


class Log:
    """The process's log."""

    name = "log"

    async def deliver(self, notice: Notice) -> None:
        """Log ``notice``."""
        logger.warning("%s", log_line(notice))
