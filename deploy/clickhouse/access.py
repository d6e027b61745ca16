"""Access control of the embedded ClickHouse: two accounts with passwords; requests from web pages are refused.

`reader` may read; `writer`, the sink's account, may also change tables. The first start creates the passwords, in one
private file each. Clients send them as to any ClickHouse server: by HTTP Basic, or in ``X-ClickHouse-User`` and
``X-ClickHouse-Key``.
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
    """An account of the embedded ClickHouse."""

    READER = READER
    WRITER = WRITER


class AccessDenied(Exception):
    """The request is refused; ``code`` is a ClickHouse error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def ensure_passwords(folder: Path) -> Mapping[ClickHouseAccount, str]:
    """Returns the password of each account from ``folder``; creates missing ones, in files of mode 0600 in a folder of
    mode 0700.

    Raises :class:`StackError` for a file that other users can read, or that is empty.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return {account: _ensure_password(folder / account) for account in ClickHouseAccount}


def _ensure_password(file: Path) -> str:
    if not file.exists():
        # Written atomically: a process that dies here must not leave a partial password behind.
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(randomness.token_urlsafe(32))
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(fresh, file)
    if file.stat().st_mode & 0o077:
        raise StackError(f"{file} contains a password, but other users can read it: run `chmod 600 {file}`")
    password = file.read_text().strip()
    if not password:
        raise StackError(f"{file} contains no password: remove it, and the next start creates a new one")
    return password


def refuse_web_page(headers: Mapping[str, str]) -> None:
    """Raise :class:`AccessDenied` for a request that a browser sent on behalf of any web page.

    ``Sec-Fetch-Site`` is on every request that a current browser sends to this machine, images and forms included.
    """
    if "origin" in headers or "referer" in headers or headers.get("sec-fetch-site", "none") != "none":
        raise AccessDenied(ACCESS_DENIED, "Requests from web pages are refused: use a ClickHouse client, or curl")


def account_of(
    headers: Mapping[str, str], fields: Mapping[str, str], passwords: Mapping[ClickHouseAccount, str], folder: Path
) -> ClickHouseAccount:
    """Returns the account of a request with ``headers`` and URL parameters ``fields``.

    Raises :class:`AccessDenied` without a correct password; its message names ``folder``, which has the passwords.
    """
    if "password" in fields:
        raise AccessDenied(
            AUTHENTICATION_FAILED,
            "A password in a URL is not accepted because URLs are logged: send it by HTTP Basic (curl -u reader:…) or "
            "as X-ClickHouse-User and X-ClickHouse-Key",
        )
    user, password = _credentials(headers, fields)
    for account, right in passwords.items():
        if user == account and hmac.compare_digest(password.encode(), right.encode()):
            return account
    raise AccessDenied(
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
