"""TLS and SASL in Faust's form, which Faust turns into the options of its aiokafka clients."""

import ssl

import pytest
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from headrace.schemas.kafka.security import MECHANISMS, KafkaSecurity, aiokafka_options
from headrace.streams.faust_shell.faust_app import credentials_of


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_fausts_clients_get_the_options_of_the_others(protocol: str, mechanism: str) -> None:
    login = {"sasl_mechanism": mechanism, "sasl_username": "u", "sasl_password": "p"} if protocol != "SSL" else {}
    security = KafkaSecurity(protocol, **login)
    options = aiokafka_options(security, ssl.create_default_context() if security.uses_tls else None)
    made = credentials_to_aiokafka_auth(credentials_of(options))
    assert {name: value for name, value in made.items() if value is not None} == options


def test_without_settings_there_are_no_credentials() -> None:
    assert credentials_of({}) is None
