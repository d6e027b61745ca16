"""Why a broker refuses a client: its user, its password, its certificate, its protocol.

aiokafka logs the cause and raises only that it could not connect, as it does while a broker is away. Processes would
wait for a broker that will never accept them. Here one more connection tells the two apart.
"""

import ssl

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from headrace.schemas.kafka.security import process_security, variable, with_security

ANSWER_MS = 5_000
"""Limit for a connection and for each answer on it."""


class AccessRefused(KafkaConnectionError):  # type: ignore[misc]  # aiokafka has no types here
    """A broker answers and does not accept this client. The message names the settings to check."""


async def check_access(bootstrap: str) -> None:
    """Raise :class:`AccessRefused` if the broker at ``bootstrap`` refuses clients with the settings of this process.

    Returns also if no broker answers, or the settings are PLAINTEXT.
    """
    if process_security().security_protocol == "PLAINTEXT":
        return
    client = AIOKafkaClient(bootstrap_servers=bootstrap, request_timeout_ms=ANSWER_MS, **with_security({}))
    if (refused := await refusal_of(client)) is not None:
        raise refused


async def refusal_of(client: AIOKafkaClient) -> AccessRefused | None:
    """Return the error of a broker that refuses connections with the settings of ``client``.

    ``None`` if one of its brokers accepts them, if none answers, and if ``client`` uses neither TLS nor SASL.
    """
    if client._security_protocol == "PLAINTEXT":
        return None
    refused = None
    for host, port, _ in client.hosts:
        try:
            connection = await create_conn(
                host,
                port,
                client_id=client._client_id,
                request_timeout_ms=min(ANSWER_MS, client._request_timeout_ms),
                security_protocol=client._security_protocol,
                ssl_context=client._ssl_context,
                sasl_mechanism=client._sasl_mechanism,
                sasl_plain_username=client._sasl_plain_username,
                sasl_plain_password=client._sasl_plain_password,
                sasl_kerberos_service_name=client._sasl_kerberos_service_name,
                sasl_kerberos_domain_name=client._sasl_kerberos_domain_name,
                sasl_oauth_token_provider=client._sasl_oauth_token_provider,
            )
        except (OSError, KafkaError) as error:
            cause = _cause(error, client)
            if cause is not None:
                refused = AccessRefused(f"The Kafka at {host}:{port} {cause} (the SDK: or its kafka_options).")
                refused.__cause__ = error
        else:
            connection.close()
            return None
    return refused


def _cause(raised: Exception, client: AIOKafkaClient) -> str | None:
    """What is wrong, and which settings to check; ``None`` for the errors of a broker that is away."""
    protocol = f"{variable('security_protocol')} ({client._security_protocol})"
    # A broker that misses a client's certificate, or does not accept it, says so only after the handshake.
    match raised.__cause__ if isinstance(raised.__cause__, ssl.SSLError) else raised:
        case SaslAuthenticationFailed() as error:
            return (
                f"refused the user {client._sasl_plain_username!r} with {client._sasl_mechanism}: "
                f"{error}. Check {variable('sasl_username')}, {variable('sasl_password')} and "
                f"{variable('sasl_mechanism')}"
            )
        case UnsupportedSaslMechanismError() as error:
            return f"does not offer {client._sasl_mechanism}: {error}. Check {variable('sasl_mechanism')}"
        case IllegalSaslStateError():
            return f"takes no user and password at this address. Check {protocol}"
        case ssl.SSLCertVerificationError() as error:
            return (
                f"has a certificate that is not accepted: {error.verify_message}. Check {variable('ssl_ca_file')}, and "
                "that HEADRACE_KAFKA has the name in the certificate"
            )
        case ssl.SSLError() as error:
            return (
                f"opens no TLS connection, or does not accept the client's certificate: {error}. Check {protocol}, "
                f"{variable('ssl_certificate_file')} and {variable('ssl_key_file')}"
            )
        case _:
            return None
