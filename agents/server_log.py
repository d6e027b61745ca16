"""The log of an HTTP server, without requests that are none.

aiohttp logs the line of a request that it cannot parse, and a body that cannot be decompressed, as an error with a
traceback. The line may hold a key or a token, and anyone who reaches the port could fill the log.
"""

import logging
from typing import Final

from aiohttp import web
from aiohttp.http import HttpProcessingError

BAD_REQUESTS: Final = (HttpProcessingError, web.RequestPayloadError)


class _WithoutBadRequests(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether ``record`` is about anything but a request that cannot be read."""
        return record.exc_info is None or not isinstance(record.exc_info[1], BAD_REQUESTS)


SERVER_LOG: Final = logging.getLogger("headrace.http")
"""For ``aiohttp.web.AppRunner``."""

SERVER_LOG.addFilter(_WithoutBadRequests())
