"""The resource that sends events of OpenLineage for what an IO manager writes."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr

from dagster_versioned.extras import requiring

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

    from dagster_versioned.dagster_internals import StepExecutionContext
    from dagster_versioned.io_managers.open_lineage_events import ReportedOutput
    from dagster_versioned.tables.table import VersionedTable


class OpenLineageResource(dg.ConfigurableResource[Any]):
    """Sends a run of OpenLineage for each output of a versioned IO manager: ``START`` and ``COMPLETE`` once it is
    committed, ``START`` and ``FAIL`` where the write failed.

    Where to is OpenLineage's own configuration: ``openlineage.yml``, or ``OPENLINEAGE_URL`` and the other variables of
    its Python client. What cannot be sent is warned of in the run's log, and fails nothing; a run does not begin
    without the client (`MissingExtra`).
    """

    model_config = ConfigDict(extra="forbid")

    namespace: str = Field(default="dagster", description="The namespace of jobs; a job is named by its asset key.")

    _client: "OpenLineageClient | None" = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Dagster's; raises `MissingExtra`."""
        _client_class()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Dagster's; what a transport has not sent yet is sent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextmanager
    def reporting(
        self, table: "VersionedTable", asset_key: dg.AssetKey, step: "StepExecutionContext | None", log: logging.Logger
    ) -> "Generator[ReportedOutput]":
        """Within it an output is handled; at its end the events are sent. Whatever fails in that is logged."""
        from dagster_versioned.io_managers.open_lineage_events import ReportedOutput

        output = ReportedOutput(table, asset_key, step)
        try:
            yield output
        except Exception as error:
            self._send(output, log, error)
            raise
        self._send(output, log, None)

    def _send(self, output: "ReportedOutput", log: logging.Logger, failure: Exception | None) -> None:
        from dagster_versioned.io_managers.open_lineage_events import run_events

        try:
            self._client = self._client or _client_class()()
            for event in run_events(self.namespace, output, failure):
                self._client.emit(event)
        except Exception as error:  # noqa: BLE001 - the table is as it is to be, so a failed event fails no step
            outcome = "what was written is committed" if failure is None else "the write failed"
            log.warning(
                f"{output.table.name}: {outcome}, but the event did not reach OpenLineage. "
                f"{type(error).__name__}: {error!s:.500}"
            )


def _client_class() -> "type[OpenLineageClient]":
    with requiring("openlineage", "open_lineage= of the IO manager"):
        from openlineage.client import OpenLineageClient
    return OpenLineageClient
