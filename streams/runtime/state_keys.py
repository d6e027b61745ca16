"""Keys of a processor's state, and how they are written to its topic, which also has a record of the runtime's own.

    b"task-a"       ⇄  b"task-a"
    b"\\0settled"    ⇄  b"\\0settled\\0"      because b"\\0settled" is the key of the committed offsets

A processor may use an id of an agent as a key, so no key can be refused.
"""

COMMITTED = b"\0settled"
"""Key of the record that every transaction writes to the state: the committed offset of each source."""


def stored_key(key: bytes) -> bytes:
    """Returns the key in the topic of the entry ``key``: the same, with a NUL byte more if it is :data:`COMMITTED`, or
    that with NUL bytes after it."""
    return key + b"\0" if key.rstrip(b"\0") == COMMITTED else key


def key_of(stored: bytes) -> bytes:
    """Returns the key of an entry, given its key in the topic: the inverse of :func:`stored_key`. ``stored`` is not
    :data:`COMMITTED`, which is no entry."""
    return stored[:-1] if stored.rstrip(b"\0") == COMMITTED else stored
