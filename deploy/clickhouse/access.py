"""Who may ask the embedded ClickHouse: two accounts with a password each, and no web page.

`reader` may read; `writer`, the sink's account, may also change tables. The passwords are made at the first start, one
private file each, and are sent as a server wants them: HTTP Basic, or ``X-ClickHouse-User`` and ``X-ClickHouse-Key``.
"""

import hmac
import os
import secrets as randomness
from base64 import b64decode
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from headrace.deploy.errors import StackError
from headrace.streams.clickhouse.database import READER, WRITER

AUTHENTICATION_FAILED = 516
ACCESS_DENIED = 497


class ClickHouseAccount(StrEnum):
    """An account."""

    READER = READER
    WRITER = WRITER


class Denied(Exception):
    """The request is refused; ``code`` is ClickHouse's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def ensure_passwords(folder: Path) -> Mapping[ClickHouseAccount, str]:
    """The password of each account in ``folder``, made where it is missing: files of mode 0600 in a folder of 0700.

    Raises :class:`StackError` for a file that others may read, or that is empty.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return {account: _ensure_password(folder / account) for account in ClickHouseAccount}


def _ensure_password(file: Path) -> str:
    if not file.exists():
        # Whole or not at all: a process that dies here must not leave half a password behind.
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(randomness.token_urlsafe(32))
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(fresh, file)
    if file.stat().st_mode & 0o077:
        raise StackError(f"{file} holds a password and others may read it: chmod 600 {file}")
    password = file.read_text().strip()
    if not password:
        raise StackError(f"{file} holds no password: remove it, and a new one is made at the next start")
    return password


def refuse_web_page(headers: Mapping[str, str]) -> None:
    """Raises :class:`Denied` for a request that a browser sent for a page, whichever page that is.

    ``Sec-Fetch-Site`` is on every request that a current browser sends to this machine, images and forms included.
    """
    if "origin" in headers or "referer" in headers or headers.get("sec-fetch-site", "none") != "none":
        raise Denied(ACCESS_DENIED, "Requests from web pages are refused: use a ClickHouse client, or curl")


def account_of(
    headers: Mapping[str, str], fields: Mapping[str, str], passwords: Mapping[ClickHouseAccount, str], folder: Path
) -> ClickHouseAccount:
    """The account that a request with ``headers`` and URL parameters ``fields`` comes from.

    Raises :class:`Denied` without a right password; ``folder`` is where it says they are.
    """
    if "password" in fields:
        raise Denied(
            AUTHENTICATION_FAILED,
            "A password in a URL is not taken, since URLs are logged: send it by HTTP Basic (curl -u reader:…) or as "
            "X-ClickHouse-User and X-ClickHouse-Key",
        )
    user, password = _credentials(headers, fields)
    for account, right in passwords.items():
        if user == account and hmac.compare_digest(password.encode(), right.encode()):
            return account
    raise Denied(
        AUTHENTICATION_FAILED,
        f"Authentication failed: log in as reader, or as writer to change tables, with the password in {folder}/reader "
        f"or {folder}/writer",
    )


def _credentials(headers: Mapping[str, str], fields: Mapping[str, str]) -> tuple[str, str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, password = b64decode(token.strip(), validate=True).decode().partition(":")
        except ValueError:
            return "", ""
        return user, password
    return headers.get("x-clickhouse-user") or fields.get("user", ""), headers.get("x-clickhouse-key", "")
