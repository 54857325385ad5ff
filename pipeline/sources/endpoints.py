"""The Prometheus pages that the run's own configs name, found again when these change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from pipeline.formats.run_config import configured
from pipeline.sources.base import SideThread, Sight, SourceError, now
from pipeline.sources.prometheus import PrometheusSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.events import Seeing
    from pipeline.run_directory import RunDirectory
    from pipeline.sources.base import Emit

LOOK_AGAIN_S = 30.0
DEADLINE_S = 10.0


class Endpoints:
    """Polls the engines and the trainer of a run, and *more* pages."""

    name = "metrics"

    def __init__(self, run: RunDirectory, more: Sequence[str] = (), interval_s: float = 15.0) -> None:
        self._run, self._more, self._interval_s = run, list(more), interval_s
        self._thread = SideThread(DEADLINE_S)

    async def run(self, emit: Emit) -> None:
        """
        Poll the pages, and begin anew when the configs name others.

        Raises:
            SourceError: The configs cannot be read in time.

        """
        urls, sight = await self._urls(), Sight(self.name)
        while True:
            for change in sight.change(*_sight(urls)):
                await emit(change)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(PrometheusSource(urls, self._interval_s).run, emit)
                while (found := await self._urls()) == urls:  # noqa: ASYNC110 - files tell nobody that they changed
                    await anyio.sleep(LOOK_AGAIN_S)
                tasks.cancel_scope.cancel()
            urls = found

    async def _urls(self) -> list[str]:
        try:
            files = await self._thread.call(self._run.config_files)
        except TimeoutError as error:
            message = f"the run's configs cannot be read: {error}"
            raise SourceError(message) from error
        config = configured(files, now())
        pages = [*config.engine_urls, config.trainer_metrics_url, *self._more]
        return [page for page in pages if page]


def _sight(urls: Sequence[str]) -> tuple[Seeing, str]:
    return ("seeing", "") if urls else ("absent", "the run's configs name no page")
