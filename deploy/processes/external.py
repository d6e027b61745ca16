"""Checks that an external server answers at the address in the settings."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.deploy.errors import StackError

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings

_TIMEOUT_S = 10.0


def answers_over_http(name: str, path: str) -> Callable[["Settings"], Awaitable[None]]:
    """Returns a check that the address in the setting ``name`` answers GET ``path``; it raises :class:`StackError`."""

    async def check(settings: "Settings") -> None:
        import httpx

        from headrace.deploy.configuration.settings import PREFIX

        url = str(getattr(settings, name)).rstrip("/")
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
                (await client.get(url + path)).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StackError(
                f"{name} at {url} ({PREFIX}{name.upper()}) did not answer {path}: {error or type(error).__name__}. "
                "Check the address and that the server runs, or unset the setting and the stack starts one."
            ) from error

    return check
