"""Errors that only the operator of a process can fix, by a setting or a command."""


class OperatorError(Exception):
    """A process cannot start or continue with the present setup.

    The message is written for the operator: what is wrong, where, and what to do. Processes end with this message and
    without a traceback.
    """


class TopicsError(OperatorError, LookupError):
    """A topic is missing, or has the wrong number of partitions."""
