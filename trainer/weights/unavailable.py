"""What a store refuses or cannot do for now, as one error that names the setting and what to do about it."""

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from headrace.trainer.weights.store_url import scheme_of

_MAX_MESSAGE = 400
"""Characters of the store's own words that are repeated."""

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""Codes for a bucket that is not there: of S3 and Google, of Azure."""

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), AWS_REGION",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}
"""Scheme → the environment variables that obstore takes them from."""


class StoreUnavailable(RuntimeError):
    """The object store is out of reach, full, without the bucket, or refuses the credentials. Try again."""


class StoreUnsuitable(RuntimeError):
    """The object store cannot create an object once: it replaces what exists."""


def is_without_bucket(error: BaseException) -> bool:
    """Whether the store misses the bucket. What it raises then is what it raises for a missing object."""
    return any(code in str(error) for code in _NO_BUCKET)


def unavailable(url: str, error: BaseException) -> StoreUnavailable:
    """The error to raise where the store at ``url`` raised ``error``."""
    message = str(error).split("\n\nDebug source", 1)[0]  # obstore adds a dump of its own structures
    return StoreUnavailable(f"store_url {url} cannot be used: {message[:_MAX_MESSAGE]}; {_remedy(url, error)}")


def _remedy(url: str, error: BaseException) -> str:
    scheme = scheme_of(url)
    credentials = _CREDENTIALS.get(scheme)
    if credentials is None:
        return "check that the folder is there, can be written to, and has room"
    if is_without_bucket(error):
        return "make the bucket, or set store_url to one that there is"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return f"set the credentials in {credentials}, and allow them to read and write there"
    reached = "check that the store can be reached"
    if scheme == "s3":
        reached += ", at AWS_ENDPOINT_URL where it is not Amazon's"
    return f"{reached}, and that there are credentials: {credentials}"
