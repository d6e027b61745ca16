"""How a process of ours writes its log: no secret in it, and no line that a record's content made up."""

import logging

from headrace.schemas.safe_text import printable_lines, redacted

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LogFormatter(logging.Formatter):
    """Control characters are escaped, and the second and later lines of a message stand back, so that no content of a
    record passes for an entry of its own. Secrets are taken out, whichever library logged them."""

    def __init__(self, form: str = FORMAT) -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the library's name
        """The line without its traceback."""
        record.message = record.message.replace("\n", "\n    ")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """The whole entry."""
        return printable_lines(redacted(super().format(record)))


def log_to_stderr(level: str) -> None:
    """Log from ``level`` on to standard error, in this form, and nowhere else."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
