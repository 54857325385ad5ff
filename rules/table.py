"""What every table of a rule file is: strict."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=80)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a rule file; an unknown key in it is an error."""
