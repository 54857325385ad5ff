"""What all tests share: the asyncio back end, and runs of hypothesis that repeat."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

# CI must not fail by chance; at a desk, fresh examples find more
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("desk", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# a shell's background job ignores Ctrl-C, and so would each program that a test starts and interrupts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio alone: aiohttp and apprise need it."""
    return "asyncio"
