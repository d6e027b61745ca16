"""TLS and SASL of every Kafka client: settings from the environment, checked, as options of both client libraries.

HEADRACE_KAFKA_SECURITY_PROTOCOL=SASL_SSL HEADRACE_KAFKA_SASL_MECHANISM=SCRAM-SHA-512 …   →   KafkaSecurity(…)
    →   {"security_protocol": "SASL_SSL", "ssl_context": …, "sasl_mechanism": …}          aiokafka
    →   {"security.protocol": "SASL_SSL", "ssl.ca.location": …, "sasl.mechanism": …}      librdkafka
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.operator_error import OperatorError

PREFIX = "HEADRACE_KAFKA_"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SECURITY_OPTIONS = frozenset(
    {
        *("security_protocol", "ssl_context", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password"),
        *("sasl_kerberos_service_name", "sasl_kerberos_domain_name", "sasl_oauth_token_provider"),
    }
)
"""Options of aiokafka's clients that are about TLS and SASL."""


class KafkaSecurityError(OperatorError, ValueError):
    """The settings of TLS or SASL contradict each other, or a file that they name cannot be used."""


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """How clients connect to Kafka. The environment variable of a field is HEADRACE_KAFKA_NAME."""

    security_protocol: str = "PLAINTEXT"
    """One of :data:`PROTOCOLS`."""
    ssl_ca_file: str | None = None
    """PEM file of the authorities that the broker's certificate is checked with; ``None``: the system's."""
    ssl_certificate_file: str | None = None
    """PEM file of the client's certificate, with the chain that leads to its authority."""
    ssl_key_file: str | None = None
    """PEM file of the private key of that certificate; ``None``: it is in the certificate's file."""
    ssl_key_password: str | None = field(default=None, repr=False)
    """Password of the private key, if it is encrypted."""
    sasl_mechanism: str | None = None
    """One of :data:`MECHANISMS`."""
    sasl_username: str | None = None
    """User."""
    sasl_password: str | None = field(default=None, repr=False)
    """Password of the user."""

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether clients log in."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")


FIELDS = tuple(KafkaSecurity.__dataclass_fields__)
"""Names of the settings, without :data:`PREFIX`, in small letters."""


def variable(name: str) -> str:
    """Return the environment variable of a field of :class:`KafkaSecurity`."""
    return PREFIX + name.upper()


def security_from(environment: Mapping[str, str]) -> KafkaSecurity:
    """Return the settings in ``environment``; an empty variable counts as unset.

    Raises :class:`KafkaSecurityError` that names the setting and what to do. Files are not read.
    """
    given = {name: value for name in FIELDS if (value := environment.get(variable(name)))}
    security = KafkaSecurity(**given)
    if security.security_protocol not in PROTOCOLS:
        raise KafkaSecurityError(
            f"{variable('security_protocol')} is {security.security_protocol!r}: expected one of "
            f"{', '.join(PROTOCOLS)}."
        )
    for kind, used, protocols in (("ssl", security.uses_tls, "SSL or SASL_SSL"), ("sasl", security.uses_sasl, _SASL)):
        if not used and (useless := [name for name in given if name.startswith(kind)]):
            raise KafkaSecurityError(
                f"{variable(useless[0])} is set, but {variable('security_protocol')} is {security.security_protocol}"
                f"{'' if 'security_protocol' in given else ', its default'}: set that to {protocols}, or unset "
                f"{', '.join(map(variable, useless))}."
            )
    if security.uses_sasl:
        _check_sasl(security)
    if (security.ssl_key_file or security.ssl_key_password) and not security.ssl_certificate_file:
        named = "ssl_key_file" if security.ssl_key_file else "ssl_key_password"
        raise KafkaSecurityError(
            f"{variable(named)} is set, but {variable('ssl_certificate_file')} is not: set it to the PEM file of the "
            "certificate that belongs to the key."
        )
    return security


_SASL = "SASL_SSL or SASL_PLAINTEXT"


def _check_sasl(security: KafkaSecurity) -> None:
    if security.sasl_mechanism not in MECHANISMS:
        found = "not set" if security.sasl_mechanism is None else repr(security.sasl_mechanism)
        raise KafkaSecurityError(
            f"{variable('sasl_mechanism')} is {found}: {security.security_protocol} needs one of "
            f"{', '.join(MECHANISMS)}, the one with which the broker knows the user."
        )
    for name in ("sasl_username", "sasl_password"):
        if not getattr(security, name):
            raise KafkaSecurityError(
                f"{variable(name)} is not set: {security.security_protocol} with {security.sasl_mechanism} needs a "
                "user and a password."
            )


def aiokafka_options(security: KafkaSecurity, context: ssl.SSLContext | None) -> dict[str, Any]:
    """Return the options of aiokafka's clients. ``context``: :func:`tls_context` of ``security``."""
    options: dict[str, Any] = {}
    if security.security_protocol != "PLAINTEXT":
        options["security_protocol"] = security.security_protocol
    if security.uses_tls:
        options["ssl_context"] = context
    if security.uses_sasl:
        options["sasl_mechanism"] = security.sasl_mechanism
        options["sasl_plain_username"] = security.sasl_username
        options["sasl_plain_password"] = security.sasl_password
    return options


def librdkafka_options(security: KafkaSecurity) -> dict[str, str]:
    """Return the settings of librdkafka's clients."""
    if security.security_protocol == "PLAINTEXT":
        return {}
    options: dict[str, str | None] = {"security.protocol": security.security_protocol}
    if security.uses_tls:
        options |= {
            "enable.ssl.certificate.verification": "true",
            "ssl.endpoint.identification.algorithm": "https",
            "ssl.ca.location": security.ssl_ca_file,
            "ssl.certificate.location": security.ssl_certificate_file,
            "ssl.key.location": security.ssl_key_file or security.ssl_certificate_file,
            "ssl.key.password": security.ssl_key_password,
        }
    if security.uses_sasl:
        options |= {
            "sasl.mechanism": security.sasl_mechanism,
            "sasl.username": security.sasl_username,
            "sasl.password": security.sasl_password,
        }
    return {name: value for name, value in options.items() if value is not None}


def tls_context(security: KafkaSecurity) -> ssl.SSLContext | None:
    """Return a context that checks the broker's certificate and host name; ``None`` without TLS. Reads the files.

    Raises :class:`KafkaSecurityError` that names the setting whose file cannot be used.
    """
    if not security.uses_tls:
        return None
    for name in ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file"):
        file = getattr(security, name)
        try:
            if file is not None:
                with open(file, "rb"):
                    pass
        except OSError as error:
            raise KafkaSecurityError(
                f"{variable(name)} names {file}, which cannot be read ({error.strerror}): set it to a PEM file that "
                "this process's user can read."
            ) from error
    try:
        context = ssl.create_default_context(cafile=security.ssl_ca_file)
    except ssl.SSLError as error:
        raise KafkaSecurityError(
            f"{variable('ssl_ca_file')} names {security.ssl_ca_file}, which has no certificates in PEM: {error}."
        ) from error
    if security.ssl_certificate_file is not None:
        try:
            # With a password, if only an empty one, OpenSSL does not ask for one on the terminal.
            context.load_cert_chain(
                security.ssl_certificate_file, security.ssl_key_file, security.ssl_key_password or ""
            )
        except (ssl.SSLError, OSError) as error:
            names = ", ".join(map(variable, ("ssl_certificate_file", "ssl_key_file", "ssl_key_password")))
            raise KafkaSecurityError(
                f"The certificate {security.ssl_certificate_file} and its key "
                f"{security.ssl_key_file or security.ssl_certificate_file} cannot be used: {error}. Check {names}."
            ) from error
    return context


def process_security() -> KafkaSecurity:
    """Return the settings of this process, from its environment.

    The factories of clients call this, through the two functions below, so that no signature between a command and a
    client needs a parameter for it. Processes that a process starts inherit its environment, and so the settings.
    """
    return security_from(os.environ)


def with_security(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` of an aiokafka client with TLS and SASL of this process, unless they have their own.

    Options about TLS or SASL replace all of the environment's: a user of one and a password of the other would not
    belong together. Files are read each time, so that a new client uses a renewed certificate.
    """
    if SECURITY_OPTIONS & options.keys():
        return dict(options)
    security = process_security()
    return aiokafka_options(security, tls_context(security)) | dict(options)


def librdkafka_security() -> dict[str, str]:
    """Return the settings of a librdkafka client for TLS and SASL of this process."""
    return librdkafka_options(process_security())


def account_of(options: Mapping[str, Any]) -> str:
    """Return the user that an aiokafka client with :func:`with_security` of ``options`` logs in as, or ""."""
    if SECURITY_OPTIONS & options.keys():
        return str(options.get("sasl_plain_username", ""))
    return os.environ.get(variable("sasl_username"), "")
