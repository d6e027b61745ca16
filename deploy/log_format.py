"""The log format of headrace's processes: without secrets, and safe against forged entries in a record's content."""

import logging

from headrace.schemas.safe_text import printable_lines, redacted

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LogFormatter(logging.Formatter):
    """Escapes control characters and indents the second and later lines of a message, so that no content of a record
    can pass for a log entry. Removes secrets, whichever library logged them."""

    def __init__(self, form: str = FORMAT) -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the library's name
        """Returns the entry without its traceback."""
        record.message = record.message.replace("\n", "\n    ")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Returns the whole entry."""
        return printable_lines(redacted(super().format(record)))


def log_to_stderr(level: str) -> None:
    """Log messages of ``level`` and above in this format to standard error only."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
