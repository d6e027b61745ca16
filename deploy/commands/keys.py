"""``headrace keys``: the public key with which followers verify a trainer's versions."""

from pathlib import Path

import click

from headrace.deploy.terminal import print_line


@click.command("keys")
@click.option("--data", type=click.Path(file_okay=False), help="The trainer's data folder (HEADRACE_DATA).")
@click.option(
    "--key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The private key's file, as the trainer's signing_key names it.  [default: DATA/keys/trainer.pem]",
)
def command(data: str | None, key: Path | None) -> None:
    """Print the trainer's public key; create the private key on this machine if it is missing.

    The trainer signs the versions that it publishes, and a follower loads only versions that are signed by a key it
    trusts. `headrace up` sets up both. Elsewhere, run this where the trainer runs, and pass the key to the followers:

    \b
      HEADRACE_OPTIONS='{"follower": {"trust": ["PUBLIC KEY"]}}' headrace worker follower

    To replace a key: move the old file away, run this command, let the followers trust both keys, restart the trainer,
    and remove the old public key from the followers' settings.
    """
    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.trainer.weights.signing import SigningKeyError, load_or_create_key

    file = (key or load_settings(data=data).signing_key).expanduser()
    try:
        print_line(load_or_create_key(file).public)
    except (SigningKeyError, OSError) as error:
        raise StackError(str(error)) from error
