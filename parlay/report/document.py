"""What all JSON documents share: no unknown key, no number that JSON has not."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A document or a part of one; keys are only ever added to a schema version."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)
