"""The headers of every response of the dashboard, and its JSON answers."""

from typing import Any

from starlette.responses import JSONResponse

HEADERS = {
    # The page loads nothing from other sites, and other pages may not frame it.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def answer(content: Any, status: int = 200) -> JSONResponse:
    """Returns ``content`` as JSON."""
    return JSONResponse(content, status, HEADERS)


def refusal(problem: str, status: int) -> JSONResponse:
    """Returns an answer that says why there is no other, in a sentence for people."""
    return answer({"problem": problem}, status)
