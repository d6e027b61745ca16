"""What a person reads when headrace cannot do what was asked."""


class StackError(Exception):
    """One clear sentence or two: what is wrong, which setting decides it, and what to do. Shown without a traceback."""
