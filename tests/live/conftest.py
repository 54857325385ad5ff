"""What the tests of the running program are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.running import Receiver, Site, receiving


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Give an empty output directory; what was started for it is ended."""
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Give a service that takes messages."""
    with receiving(answers=True) as made:
        yield made
