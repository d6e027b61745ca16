"""Errors of an object store that is unavailable or refuses requests, with the setting and the remedy."""

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from headrace.schemas.objects.store_url import scheme_of

_MAX_MESSAGE = 400
"""Characters of the store's own message that are repeated."""

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""Error codes for a missing bucket: of S3 and Google, of Azure."""

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), AWS_REGION",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}
"""Scheme → environment variables from which obstore reads credentials."""


class StoreUnavailable(RuntimeError):
    """The object store is unavailable or full, lacks the bucket, or refuses the credentials. It can be retried."""


class StoreUnsuitable(RuntimeError):
    """The object store overwrites existing objects, so that objects are not immutable."""


def is_without_bucket(error: BaseException) -> bool:
    """Whether the bucket is missing; the error's type is the same as for a missing object."""
    return any(code in str(error) for code in _NO_BUCKET)


def unavailable(url: str, error: BaseException) -> StoreUnavailable:
    """Returns the error to raise after the store at ``url`` raised ``error``."""
    message = str(error).split("\n\nDebug source", 1)[0]  # obstore adds a dump of its own structures
    return StoreUnavailable(f"store_url {url} cannot be used: {message[:_MAX_MESSAGE]}; {_remedy(url, error)}")


def _remedy(url: str, error: BaseException) -> str:
    scheme = scheme_of(url)
    credentials = _CREDENTIALS.get(scheme)
    if credentials is None:
        return "check that the folder exists, is writable, and has free space"
    if is_without_bucket(error):
        return "create the bucket, or set store_url to an existing one"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return f"set the credentials in {credentials}, and allow them to read and write there"
    reached = "check that the store is reachable"
    if scheme == "s3":
        reached += ", at AWS_ENDPOINT_URL if it is not Amazon's"
    return f"{reached}, and that credentials are set: {credentials}"
