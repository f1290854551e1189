"""`retinad schema`: the message headers as JSON Schema, generated from the types that encode and decode them."""

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import typer

_ABOUT = (
    "One message of retinad as `retinad subscribe --json` prints it: the header, with the kind of the message, which on"
    " the wire is the first word of its topic, and with the gaps before it. A header as received has the keys of its"
    " kind in `headers`, without `kind` and `gaps`. Unknown keys are to be ignored: more may be added."
)


def schema() -> None:
    """Print the JSON Schema of the messages."""
    typer.echo(message_schema())


def message_schema() -> str:
    """JSON text: a schema of all messages, which the key `kind` tells apart, and a schema of each kind of header."""
    import msgspec

    from retinad.client import Gap
    from retinad.client.headers import EndHeader, FeaturesHeader, HelloHeader, RecordFields, StatusHeader

    kinds = {"features": FeaturesHeader, "status": StatusHeader, "end": EndHeader, "hello": HelloHeader}
    (gap, *headers), definitions = msgspec.json.schema_components((Gap, *kinds.values()), ref_template="#/$defs/{name}")
    inherited = _attributes(inspect.getdoc(RecordFields) or "")
    named = dict(zip(kinds, headers, strict=True))
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "retinad message",
        "description": _ABOUT,
        "type": "object",
        "required": ["kind"],
        "properties": {
            "kind": {"description": "kind of the message", "enum": list(kinds)},
            "gaps": {"description": "what is missing before this message", "type": "array", "items": gap},
        },
        "allOf": [{"if": {"properties": {"kind": {"const": kind}}}, "then": header} for kind, header in named.items()],
        "headers": named,
        "$defs": {name: _described(definition, inherited) for name, definition in definitions.items()},
    }
    return json.dumps(document, indent=2)


def _described(definition: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, Any]:
    # msgspec copies docstrings. Their first paragraph describes the type, and their attributes its properties.
    docstring = str(definition.get("description", ""))
    texts = {**inherited, **_attributes(docstring)}
    properties = {
        name: {"description": texts[name], **value} if name in texts else value
        for name, value in definition.get("properties", {}).items()
    }
    described = {**definition, "description": _for_readers(docstring.partition("\n\n")[0])}
    return described | ({"properties": properties} if properties else {})


def _attributes(docstring: str) -> dict[str, str]:
    listed = docstring.partition("Attributes:\n")[2]
    found = re.finditer(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", listed, re.MULTILINE)
    return {match[1]: _for_readers(match[2]) for match in found}


def _for_readers(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))
