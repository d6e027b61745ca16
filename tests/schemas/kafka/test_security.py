"""TLS and SASL of Kafka clients: what the environment says, as options of both libraries, and errors for what cannot
work."""

import ssl
from pathlib import Path

import pytest

from headrace.agents.sdk import Headrace
from headrace.agents.sender_config import SenderConfig
from headrace.schemas.kafka.security import (
    MECHANISMS,
    KafkaSecurity,
    KafkaSecurityError,
    account_of,
    aiokafka_options,
    librdkafka_options,
    librdkafka_security,
    security_from,
    tls_context,
    with_security,
)
from tests.certificates import Certificates, make_certificates

ALL = {
    "HEADRACE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "HEADRACE_KAFKA_SSL_CA_FILE": "/ca.pem",
    "HEADRACE_KAFKA_SSL_CERTIFICATE_FILE": "/client.pem",
    "HEADRACE_KAFKA_SSL_KEY_FILE": "/client.key",
    "HEADRACE_KAFKA_SSL_KEY_PASSWORD": "of-the-key",
    "HEADRACE_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
    "HEADRACE_KAFKA_SASL_USERNAME": "worker",
    "HEADRACE_KAFKA_SASL_PASSWORD": "of-the-user",
}
LOGIN = {name: ALL[name] for name in ALL if "SASL" in name}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_without_settings_clients_have_no_options_of_security() -> None:
    security = security_from({"HEADRACE_KAFKA": "broker:9092", "HEADRACE_KAFKA_SASL_USERNAME": ""})
    assert security == KafkaSecurity()
    assert aiokafka_options(security, None) == {}
    assert librdkafka_options(security) == {}
    assert tls_context(security) is None
    assert with_security({"linger_ms": 1}) == {"linger_ms": 1}
    assert librdkafka_security() == {}


def test_every_setting_reaches_both_libraries() -> None:
    security, context = security_from(ALL), ssl.create_default_context()
    assert aiokafka_options(security, context) == {
        "security_protocol": "SASL_SSL",
        "ssl_context": context,
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "worker",
        "sasl_plain_password": "of-the-user",
    }
    assert librdkafka_options(security) == {
        "security.protocol": "SASL_SSL",
        "enable.ssl.certificate.verification": "true",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/client.pem",
        "ssl.key.location": "/client.key",
        "ssl.key.password": "of-the-key",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "worker",
        "sasl.password": "of-the-user",
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_without_tls_has_no_options_of_tls(mechanism: str) -> None:
    security = KafkaSecurity("SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_username="u", sasl_password="p")
    assert aiokafka_options(security, None) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }
    assert librdkafka_options(security) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "u",
        "sasl.password": "p",
    }


def test_tls_alone_needs_no_files() -> None:
    security = security_from({"HEADRACE_KAFKA_SECURITY_PROTOCOL": "SSL"})
    context = tls_context(security)
    assert context is not None
    assert aiokafka_options(security, context) == {"security_protocol": "SSL", "ssl_context": context}
    assert librdkafka_options(security) == {
        "security.protocol": "SSL",
        "enable.ssl.certificate.verification": "true",
        "ssl.endpoint.identification.algorithm": "https",
    }


def test_the_brokers_certificate_and_host_name_are_checked(certificates: Certificates) -> None:
    for security in (KafkaSecurity("SSL"), KafkaSecurity("SASL_SSL", ssl_ca_file=str(certificates.ca))):
        context = tls_context(security)
        assert context is not None
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"HEADRACE_KAFKA_SECURITY_PROTOCOL": "TLS"}, r"HEADRACE_KAFKA_SECURITY_PROTOCOL is 'TLS': expected one of"),
        ({"HEADRACE_KAFKA_SECURITY_PROTOCOL": ""}, r"SSL_CA_FILE is set, but .*PROTOCOL is PLAINTEXT, its default"),
        ({"HEADRACE_KAFKA_SECURITY_PROTOCOL": "PLAINTEXT"}, r"SSL_CA_FILE is set, but .*PROTOCOL is PLAINTEXT: set"),
        ({"HEADRACE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT"}, r"SSL_CA_FILE is set, .* SSL or SASL_SSL, or unset"),
        ({"HEADRACE_KAFKA_SECURITY_PROTOCOL": "SSL"}, r"SASL_MECHANISM is set, but .* SASL_SSL or SASL_PLAINTEXT"),
        ({"HEADRACE_KAFKA_SASL_MECHANISM": ""}, r"SASL_MECHANISM is not set: SASL_SSL needs one of PLAIN, SCRAM"),
        ({"HEADRACE_KAFKA_SASL_MECHANISM": "GSSAPI"}, r"SASL_MECHANISM is 'GSSAPI': SASL_SSL needs one of PLAIN"),
        ({"HEADRACE_KAFKA_SASL_USERNAME": ""}, r"SASL_USERNAME is not set: SASL_SSL with SCRAM-SHA-512 needs a user"),
        ({"HEADRACE_KAFKA_SASL_PASSWORD": ""}, r"SASL_PASSWORD is not set: .* needs a user and a password"),
        ({"HEADRACE_KAFKA_SSL_CERTIFICATE_FILE": ""}, r"SSL_KEY_FILE is set, but .*SSL_CERTIFICATE_FILE is not"),
        (
            {"HEADRACE_KAFKA_SSL_CERTIFICATE_FILE": "", "HEADRACE_KAFKA_SSL_KEY_FILE": ""},
            r"SSL_KEY_PASSWORD is set, but .*SSL_CERTIFICATE_FILE is not: set it",
        ),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_named(changed: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaSecurityError, match=message) as raised:
        security_from(ALL | changed)
    assert "of-the-" not in str(raised.value)


def test_passwords_are_not_in_the_representation() -> None:
    assert "of-the-" not in repr(security_from(ALL))


def test_a_file_that_cannot_be_used_is_named_with_its_setting(certificates: Certificates, tmp_path: Path) -> None:
    missing, empty = str(tmp_path / "missing.pem"), tmp_path / "empty.pem"
    empty.write_text("no certificate")
    ca, pem, key = str(certificates.ca), str(certificates.client), str(certificates.client_key)
    with pytest.raises(KafkaSecurityError, match=rf"HEADRACE_KAFKA_SSL_CA_FILE names {missing}, which cannot be read"):
        tls_context(KafkaSecurity("SSL", ssl_ca_file=missing))
    with pytest.raises(KafkaSecurityError, match=rf"HEADRACE_KAFKA_SSL_KEY_FILE names {missing}, which cannot be read"):
        tls_context(KafkaSecurity("SSL", ssl_certificate_file=pem, ssl_key_file=missing))
    with pytest.raises(KafkaSecurityError, match=r"HEADRACE_KAFKA_SSL_CA_FILE names .*no certificates in PEM"):
        tls_context(KafkaSecurity("SSL", ssl_ca_file=str(empty)))
    with pytest.raises(KafkaSecurityError, match=r"Check HEADRACE_KAFKA_SSL_CERTIFICATE_FILE, .*KEY_FILE, .*KEY_PASS"):
        tls_context(KafkaSecurity("SSL", ssl_certificate_file=ca, ssl_key_file=key, ssl_key_password="of-the-key"))


def test_an_encrypted_key_needs_its_password(certificates: Certificates) -> None:
    pem, key = str(certificates.client), str(certificates.client_key)
    for password in (None, "wrong-one"):  # without one, OpenSSL would ask on the terminal and wait
        with pytest.raises(KafkaSecurityError, match=r"cannot be used.*HEADRACE_KAFKA_SSL_KEY_PASSWORD") as raised:
            tls_context(KafkaSecurity("SSL", ssl_certificate_file=pem, ssl_key_file=key, ssl_key_password=password))
        assert "wrong-one" not in str(raised.value)
    password = certificates.client_key_password
    assert tls_context(KafkaSecurity("SSL", ssl_certificate_file=pem, ssl_key_file=key, ssl_key_password=password))


def test_options_of_security_replace_all_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, LOGIN | {"HEADRACE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT"})
    assert with_security({"linger_ms": 1}) == {
        "linger_ms": 1,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "worker",
        "sasl_plain_password": "of-the-user",
    }
    assert account_of({"linger_ms": 1}) == "worker"
    own = {"security_protocol": "PLAINTEXT", "linger_ms": 1}
    assert with_security(own) == own
    assert account_of(own) == ""
    assert account_of({"sasl_plain_username": "agent"}) == "agent"


def test_a_spool_belongs_to_the_account_that_filled_it(monkeypatch: pytest.MonkeyPatch) -> None:
    without = SenderConfig("b:1", "test").cluster
    set_all(monkeypatch, LOGIN | {"HEADRACE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT"})
    by_environment = SenderConfig("b:1", "test").cluster
    assert by_environment != without
    assert SenderConfig("b:1", "test", kafka_options={"sasl_plain_username": "worker"}).cluster == by_environment
    assert SenderConfig("b:1", "test", kafka_options={"security_protocol": "PLAINTEXT"}).cluster == without


def test_the_sdk_refuses_settings_that_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_SASL_USERNAME", "worker")
    with pytest.raises(ValueError, match=r"HEADRACE_KAFKA_SASL_USERNAME is set, but HEADRACE_KAFKA_SECURITY_PROTOCOL"):
        Headrace("b:1", source="test", spool_bytes=0)
    Headrace("b:1", source="test", spool_bytes=0, kafka_options={"security_protocol": "PLAINTEXT"})
