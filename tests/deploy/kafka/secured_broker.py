"""A real broker whose listeners require TLS: with a password, or with a client's certificate."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.deploy.kafka.broker import Broker, prepare_broker, wait_until_answers
from headrace.deploy.kafka.jars import kafka_jars
from headrace.deploy.system.children import Child, end_of
from headrace.deploy.system.ports import HOST, free_ports
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from tests.certificates import Certificates, make_certificates
from tests.conftest import CACHE

USER, PASSWORD = "worker", "s3cret-of-a-test"


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """Its addresses, and the certificates that it accepts."""

    plaintext: str
    """For the broker itself, without TLS."""
    sasl_ssl: str
    """TLS, and a password by PLAIN or SCRAM-SHA-512."""
    ssl: str
    """TLS, and a certificate of the client."""
    certificates: Certificates
    """Certificates of an authority of its own."""

    def login(self, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
        """The environment of a process that logs in."""
        return {
            "HEADRACE_KAFKA": self.sasl_ssl,
            "HEADRACE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "HEADRACE_KAFKA_SSL_CA_FILE": str(self.certificates.ca),
            "HEADRACE_KAFKA_SASL_MECHANISM": mechanism,
            "HEADRACE_KAFKA_SASL_USERNAME": USER,
            "HEADRACE_KAFKA_SASL_PASSWORD": password,
        }

    def certificate(self) -> dict[str, str]:
        """The environment of a process that has a certificate."""
        return {
            "HEADRACE_KAFKA": self.ssl,
            "HEADRACE_KAFKA_SECURITY_PROTOCOL": "SSL",
            "HEADRACE_KAFKA_SSL_CA_FILE": str(self.certificates.ca),
            "HEADRACE_KAFKA_SSL_CERTIFICATE_FILE": str(self.certificates.client),
            "HEADRACE_KAFKA_SSL_KEY_FILE": str(self.certificates.client_key),
            "HEADRACE_KAFKA_SSL_KEY_PASSWORD": self.certificates.client_key_password,
        }


@contextmanager
def secured_broker(folder: Path) -> Iterator[SecuredBroker]:
    """Start one that keeps its data in ``folder``; it ends with the context."""
    plaintext, controller, sasl_ssl, ssl = free_ports(4)
    broker = Broker(folder / "kafka", plaintext, controller, MAX_REQUEST_BYTES, heap_mb=384)
    made = SecuredBroker(broker.bootstrap, f"{HOST}:{sasl_ssl}", f"{HOST}:{ssl}", make_certificates(folder))

    async def start() -> Child:
        command = await prepare_broker(broker, await kafka_jars(CACHE))
        properties = broker.folder / "server.properties"
        properties.write_text(_secured(properties.read_text(), made))
        return Child(command, folder / "kafka.log")

    child = asyncio.run(start())
    try:
        try:
            asyncio.run(wait_until_answers(made.plaintext, 90))
        except Exception as error:
            raise AssertionError(end_of(child.log, 40)) from error
        _add_user(made.plaintext)
        yield made
        assert child.poll() is None, f"the broker died during the tests:\n{end_of(child.log)}"
    finally:
        child.kill()


def _secured(properties: str, made: SecuredBroker) -> str:
    """``properties`` of a broker, with two more listeners."""
    more = f",SECURE://{made.sasl_ssl},MUTUAL://{made.ssl}"
    lines = []
    for line in properties.splitlines():
        name, _, value = line.partition("=")
        if name in ("listeners", "advertised.listeners"):
            value += more
        elif name == "listener.security.protocol.map":
            value += ",SECURE:SASL_SSL,MUTUAL:SSL"
        lines.append(f"{name}={value}")
    login = "org.apache.kafka.common.security"
    lines += [
        "inter.broker.listener.name=PLAINTEXT",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={made.certificates.broker}",
        "listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
        f"listener.name.secure.plain.sasl.jaas.config={login}.plain.PlainLoginModule required "
        f'user_{USER}="{PASSWORD}";',
        f"listener.name.secure.scram-sha-512.sasl.jaas.config={login}.scram.ScramLoginModule required;",
        "listener.name.mutual.ssl.client.auth=required",
        "listener.name.mutual.ssl.truststore.type=PEM",
        f"listener.name.mutual.ssl.truststore.location={made.certificates.ca}",
    ]
    return "\n".join(lines) + "\n"


def _add_user(plaintext: str) -> None:
    """Store the user's password for SCRAM."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": plaintext})
    for done in admin.alter_user_scram_credentials([upsertion]).values():
        done.result(30)
