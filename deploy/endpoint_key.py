"""The API key of an endpoint, from an environment variable that an option names: a key is never an argument."""

import os

import click


def key_headers(variable: str | None) -> dict[str, str]:
    """Return the header with the key in ``variable``; none without a variable. Raises ``click.UsageError``."""
    if variable is None:
        return {}
    if not (key := os.environ.get(variable)):
        raise click.UsageError(f"--key-env {variable}: there is no such environment variable, or it is empty")
    return {"Authorization": f"Bearer {key}"}
