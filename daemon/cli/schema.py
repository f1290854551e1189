"""`retinad schema`: the messages' headers as JSON Schema, made from the types that encode and decode them."""

import json

import msgspec

from retinad.client.headers import EndHeader, FeaturesHeader, HelloHeader, StatusHeader


def message_schema() -> str:
    """JSON text: one schema a kind of message, and the definitions they share."""
    kinds = {"features": FeaturesHeader, "status": StatusHeader, "end": EndHeader, "hello": HelloHeader}
    schemas, definitions = msgspec.json.schema_components(kinds.values(), ref_template="#/$defs/{name}")
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "headers": dict(zip(kinds, schemas, strict=True)),
        "$defs": definitions,
    }
    return json.dumps(document, indent=2)
