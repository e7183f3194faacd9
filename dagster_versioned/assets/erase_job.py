"""The job that erases rows from every version of tables, for who has Dagster's UI and no shell."""

import dagster as dg
from pydantic import Field

from dagster_versioned.errors import InvalidExpression
from dagster_versioned.projects.erase import Condition
from dagster_versioned.resources.project import ProjectResource

_LOGGED_EVERY = 100


class EraseConfig(dg.Config):
    """What is erased. Dagster keeps it, so no value of a person is in it: the condition is in a file."""

    tables: list[str] = Field(description="The tables, by name.")
    where_file: str = Field(description="A file, where the run is, with the condition (SQL); delete it afterwards.")
    why: str = Field(description="The reason, which the record of the erasure keeps.")
    key: list[str] = Field(default=[], description="Rows of all the tables with the same in these columns go, too.")
    set_null: list[str] = Field(default=[], description="The rows stay, and lose what they have in these columns.")
    former: dict[str, str] = Field(default={}, description="What older versions called columns of the condition.")
    skip_lacking: bool = Field(default=False, description="Versions that lack a column of it have none of the rows.")
    downstream: bool = Field(default=False, description="Also from tables computed from these that have its columns.")
    all_rows: bool = Field(default=False, description="Also where the condition is true of every row.")
    apply: bool = Field(default=False, description="Erase them; without it, the run says what would go.")


def build_erase_job(name: str = "erase_rows", *, project: ProjectResource) -> dg.JobDefinition:
    """A job that does what `Project.erase` does, by run config (`EraseConfig`); a dry run unless that says ``apply``.

    It logs how far it is, and shows the report as metadata of its output. A run that died is finished by the next one,
    whatever that erases.
    """

    @dg.op(name=f"{name}_from_every_version", out=dg.Out(dg.Nothing))
    def erase(context: dg.OpExecutionContext, config: EraseConfig, project: ProjectResource) -> None:
        def log(done: int, total: int) -> None:
            if done in (1, total) or done % _LOGGED_EVERY == 0:
                context.log.info(f"{done} of {total} parts searched")

        condition = Condition(
            Condition.text_in(config.where_file), config.former, config.skip_lacking, config.set_null, config.key
        )
        try:
            report = project.project().erase(
                condition,
                config.tables,
                why=config.why,
                dry_run=not config.apply,
                all_rows=config.all_rows,
                downstream=config.downstream,
                progress=log,
            )
        except InvalidExpression:  # whose message has the condition
            raise dg.Failure(
                f"The condition in {config.where_file} cannot be used. Nothing was erased. Why not is not said here,"
                " where it would quote the condition: `dagster-versioned erase` says it, without --apply.",
                allow_retries=False,
            ) from None
        done = "erased" if config.apply else "would be erased"
        for table in report.tables:
            context.log.info(f"{table.name}: {table.rows} rows of {table.versions} versions {done}")
        columns = ("name", "rows", "current_rows", "versions", "parts", "unclaimed")
        records = [dg.TableRecord({each: getattr(table, each) for each in columns}) for table in report.tables]
        shown = {
            "dagster_versioned/applied": config.apply,
            "dagster_versioned/epochs": list(report.epochs),
            "dagster_versioned/tables": dg.TableMetadataValue(
                records, dg.TableSchema([dg.TableColumn(each) for each in columns])
            ),
            "dagster_versioned/not_looked_into": list(report.downstream),
        }
        context.add_output_metadata(shown)

    @dg.job(name=name, resource_defs={"project": project}, description="Erases rows from every version of tables.")
    def erase_rows() -> None:
        erase()

    return erase_rows
