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

        url = str(getattr(settings, name)).rstrip("/")
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
                response = await client.get(url + path)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unusable(name, url, path, str(error) or type(error).__name__) from error
        if not response.is_success:
            raise _unusable(name, url, path, f"it says {response.status_code} {response.reason_phrase}".rstrip())

    return check


def _unusable(name: str, url: str, path: str, problem: str) -> StackError:
    from headrace.deploy.configuration.settings import PREFIX

    return StackError(
        f"{name} at {url} ({PREFIX}{name.upper()}) did not answer {path}: {problem}. Check the address and that the "
        "server runs, or unset the setting and the stack starts one."
    )
