"""What the trainer, the follower and the engine on a data folder share: the base model and the signing key."""

from typing import TYPE_CHECKING

from headrace.deploy.errors import StackError

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings


def check_base_model(settings: "Settings") -> None:
    """Raise :class:`StackError` if the base model of the settings does not exist."""
    from headrace.deploy.configuration.settings import PREFIX

    if not (settings.model_dir / "config.json").is_file():
        raise StackError(
            f"{settings.model_dir} ({PREFIX}MODEL_DIR) is not a Hugging Face model directory: it has no config.json. "
            "`headrace base-model` creates one."
        )


def make_signing_key(settings: "Settings") -> None:
    """Create the signing key of this data folder, if it is missing, before trainer and follower start in parallel.

    Raises :class:`StackError` if it cannot be read or created.
    """
    from headrace.trainer.weights.signing import SigningKeyError, load_or_create_key

    try:
        load_or_create_key(settings.signing_key)
    except (SigningKeyError, OSError) as error:
        raise StackError(str(error)) from error
