"""The JSON Schema of the limits file, for editors: made from the very classes that read it."""

from __future__ import annotations

from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from dispatcher.settings.limits_schema import LimitsFile

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def limits_json_schema() -> dict[str, Any]:
    """A schema of draft 2020-12 that accepts every valid limits file, and refuses what a schema can tell is none."""
    schema = LimitsFile.model_json_schema(schema_generator=_Generator)
    return {"$schema": DIALECT, **schema}


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, but for three things that it says otherwise than the file does."""

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """A mapping whose keys are the operator's: each of them has to look as it should."""
        return {
            "type": "object",
            "propertyNames": self.generate_inner(schema["keys_schema"]),
            "additionalProperties": self.generate_inner(schema["values_schema"]),
            **({"maxProperties": schema["max_length"]} if "max_length" in schema else {}),
        }

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Without the default: it is a value of ours, and in a category it would be wrong."""
        return self.generate_inner(schema["schema"])

    def get_title_from_name(self, name: str) -> str:
        """``max_age`` reads ``max age``."""
        return name.strip("_").replace("_", " ")
