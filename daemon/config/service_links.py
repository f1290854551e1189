"""Recognises `RETINAD_` variables that Kubernetes or Docker set for a service named retinad: they are not overrides.

Beside a Service `retinad` or `retinad-x`, every container of the namespace has variables such as `RETINAD_PORT` and
`RETINAD_X_SERVICE_HOST`. None of them contains `__`, as every variable that overrides a config key does.
"""

import re
from collections.abc import Sequence

_PORT = r"(?:TCP|UDP|SCTP)"
_LINKS = (
    (r"_SERVICE_HOST", r"[0-9A-Fa-f:.]+"),
    (r"_SERVICE_PORT(?:_[A-Z0-9_]+)?", r"\d+"),
    (r"_PORT", r"(?:tcp|udp|sctp)://\S+"),
    (rf"_PORT_\d+_{_PORT}", r"(?:tcp|udp|sctp)://\S+"),
    (rf"_PORT_\d+_{_PORT}_(?:PROTO|PORT|ADDR|START|END)", r"\S+"),
    (r"_NAME", r"/\S+/\S+"),  # Docker: /container/alias
)
_NAME = r"RETINAD(?:_[A-Z0-9]+)*?"


def is_service_link(name: str, value: str) -> bool:
    """Whether a variable has the name and the value of one that Kubernetes or Docker set for a service."""
    if "__" in name:
        return False
    return any(re.fullmatch(_NAME + form, name) and re.fullmatch(text, value) for form, text in _LINKS)


def describe_links(names: Sequence[str]) -> str:
    """A sentence about the ignored variables that Kubernetes or Docker set for a service."""
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    what = "is not a config key" if len(names) == 1 else "are not config keys"
    return (
        f"{shown} {what}: Kubernetes sets such variables for a Service of this name; "
        "enableServiceLinks: false prevents it"
    )
