"""Counts of a command's rows, files and bytes."""

from dagster_versioned.delta_tables.dml import FileChanges


def operation_metrics(changes: FileChanges, operation: str, elapsed: int) -> dict[str, int]:
    """What a command did, named as in the reference's ``operationMetrics``; ``elapsed`` is in milliseconds."""
    adds, removes = changes.adds, changes.removes
    both = {add.key for add in adds} & {remove.key for remove in removes}
    new = [add for add in adds if add.key not in both]
    gone = [remove for remove in removes if remove.key not in both]
    added, removed = sum(add.size for add in new), sum(remove.size or 0 for remove in gone)
    counts = dict(changes.metrics)
    match operation:
        case "WRITE":
            counts |= {"numFiles": len(new), "numOutputBytes": added}
            if gone:
                counts |= {"numRemovedFiles": len(gone), "numRemovedBytes": removed}
        case "MERGE":
            counts |= {
                "numTargetFilesAdded": len(new),
                "numTargetFilesRemoved": len(gone),
                "numTargetBytesAdded": added,
                "numTargetBytesRemoved": removed,
                "numTargetChangeFilesAdded": len(changes.cdcs),
                "numTargetDeletionVectorsUpdated": len(both),
                "executionTimeMs": elapsed,
            }
            counts["numOutputRows"] = sum(
                counts.get(name, 0) for name in ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsCopied")
            )
        case "DELETE" | "UPDATE":
            counts |= {
                "numAddedFiles": len(new),
                "numRemovedFiles": len(gone),
                "numAddedBytes": added,
                "numRemovedBytes": removed,
                "numAddedChangeFiles": len(changes.cdcs),
                "numDeletionVectorsUpdated": len(both),
                "executionTimeMs": elapsed,
            }
        case "OPTIMIZE":
            counts |= {
                "numAddedFiles": len(new),
                "numRemovedFiles": len(gone),
                "numAddedBytes": added,
                "numRemovedBytes": removed,
            }
        case _:
            pass
    return counts
