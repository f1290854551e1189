"""Makes the help show options without a value as switches, and no hidden argument.

Typer shows switches with `<bool>`, as if they took a value, and hidden arguments in the line of the usage.
"""

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help shows switches as switches."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        shown = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        options = [self.options_metavar] if self.options_metavar else []
        return options + [piece for param in shown for piece in param.get_usage_pieces(ctx)]


class Group(TyperGroup):
    """A group of commands whose help shows switches as switches."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(params: Sequence[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return list(params)
