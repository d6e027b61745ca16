"""What an adapter says whose library is absent."""

import pytest

from headrace.agents.adapters.runs import library_of


def test_an_absent_library_is_installed_from_a_path_since_no_index_has_headrace() -> None:
    with (
        pytest.raises(
            ImportError, match=r"No module named 'no_such_library': .*extra litellm: pip install 'PATH\[litellm\]'"
        ),
        library_of("litellm"),
    ):
        import no_such_library  # type: ignore[import-not-found]  # noqa: F401
