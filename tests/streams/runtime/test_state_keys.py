"""No key of a processor can be taken for the record of the committed offsets, and every key is found again."""

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.streams.runtime.state_keys import COMMITTED, key_of, stored_key

KEYS = st.binary(max_size=12) | st.builds(lambda count: COMMITTED + b"\0" * count, st.integers(0, 4))


@given(KEYS, KEYS)
@example(COMMITTED, COMMITTED + b"\0")
def test_every_key_has_one_of_its_own_in_the_topic_that_is_not_reserved(one: bytes, other: bytes) -> None:
    assert stored_key(one) != COMMITTED
    assert key_of(stored_key(one)) == one
    assert (stored_key(one) == stored_key(other)) == (one == other)


@given(st.binary().filter(lambda key: not key.startswith(COMMITTED)))
def test_other_keys_are_stored_as_they_are(key: bytes) -> None:
    assert stored_key(key) == key == key_of(key)
