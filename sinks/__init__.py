"""Where decisions are delivered to: one module per sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from sinks.apprise_sink import AppriseOptions
from sinks.base import Sink

SinkOptions: TypeAlias = AppriseOptions
"""The options of every sink that a config can name; its tag stands in `type`."""

Sinks: TypeAlias = Mapping[str, Sink]
"""Open sinks by the name that outbox and receipts use."""
