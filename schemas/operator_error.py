"""Errors that whoever runs a process can mend, by a setting or a command, and nobody else."""


class OperatorError(Exception):
    """A process cannot start or go on as things are set up. The message is the sentence to show: what is wrong, where,
    and what to do. Processes end with it and without a traceback.
    """


class TopicsError(OperatorError, LookupError):
    """A topic is missing, or has other partitions than it needs."""
