"""What a person reads when headrace cannot do what was asked."""

import errno

_OF_PATHS = frozenset(
    {
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS, errno.EINVAL, errno.ENODEV, errno.ENXIO),
    }
)
_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StackError(Exception):
    """One clear sentence or two: what is wrong, which setting decides it, and what to do. Shown without a traceback."""


def path_problem(error: OSError) -> str | None:
    """What is wrong with a file or folder that somebody named, in a sentence; ``None`` where the error is another."""
    if error.errno in _OF_SPACE:
        where = f" at {error.filename}" if error.filename else ""
        return f"There is no room left{where} ({error.strerror}): make some, and run the command again."
    if error.errno in _OF_PATHS and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}. Check the path, and that this user may use it."
    return None
