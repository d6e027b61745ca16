"""HEADRACE_* variables that are no settings, misspelt ones most of them, are reported: nothing reads them.

They are not refused. A cluster sets variables that nobody asked for: for a service called headrace-trainer,
Kubernetes gives every container HEADRACE_TRAINER_PORT=tcp://10.0.0.7:80 and others.
"""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

_OF_KUBERNETES = re.compile(r"\w+_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_ADDRESS_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://")


def unknown_variables(environment: Mapping[str, str], prefix: str, known: Collection[str]) -> list[str]:
    """A sentence for each variable of ``environment`` that begins with ``prefix`` and is none of ``known``.

    ``known`` are whole names, in capitals; ``NAME__PART`` is a part of the setting NAME. An empty variable
    counts as not set.
    """
    sentences = []
    for name, value in sorted(environment.items()):
        setting = name.upper().partition("__")[0]
        if not setting.startswith(prefix) or setting in known or not value:
            continue
        if _OF_KUBERNETES.fullmatch(setting) or _ADDRESS_OF_KUBERNETES.match(value):
            continue
        near = get_close_matches(setting, known, 1, 0.8)
        instead = f"did you mean {near[0]}?" if near else "`headrace settings` lists those that there are."
        sentences.append(f"{name} is set in the environment and is no setting, so nothing reads it: {instead}")
    return sentences
