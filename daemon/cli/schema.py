"""`retinad schema`: the message headers as JSON Schema, generated from the types that encode and decode them."""

import json

import typer


def schema() -> None:
    """Print the JSON Schema of the message headers."""
    typer.echo(message_schema())


def message_schema() -> str:
    """JSON text: one schema per kind of message, and the definitions that they share."""
    import msgspec

    from retinad.client.headers import EndHeader, FeaturesHeader, HelloHeader, StatusHeader

    kinds = {"features": FeaturesHeader, "status": StatusHeader, "end": EndHeader, "hello": HelloHeader}
    schemas, definitions = msgspec.json.schema_components(kinds.values(), ref_template="#/$defs/{name}")
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "headers": dict(zip(kinds, schemas, strict=True)),
        "$defs": definitions,
    }
    return json.dumps(document, indent=2)
