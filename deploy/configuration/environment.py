"""Reports HEADRACE_* variables that are not settings, most of them misspelt, because nothing reads them.

They are not refused, because a cluster sets such variables itself: for a service called headrace-trainer, Kubernetes
gives every container HEADRACE_TRAINER_PORT=tcp://10.0.0.7:80 and others.
"""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

_KUBERNETES_NAME = re.compile(r"\w+_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_KUBERNETES_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def unknown_variables(environment: Mapping[str, str], prefix: str, known: Collection[str]) -> list[str]:
    """Returns a sentence for each variable of ``environment`` that begins with ``prefix`` and is not in ``known``.

    ``known`` are full names in capitals; ``NAME__PART`` belongs to the setting NAME. An empty variable counts as unset.
    """
    sentences = []
    for name, value in sorted(environment.items()):
        setting = name.upper().partition("__")[0]
        if not setting.startswith(prefix) or setting in known or not value:
            continue
        if _KUBERNETES_NAME.fullmatch(setting) or _KUBERNETES_ADDRESS.match(value):
            continue
        near = get_close_matches(setting, known, 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else "`headrace settings` lists all settings."
        sentences.append(f"The environment variable {name} is not a setting, and nothing reads it: {hint}")
    return sentences
