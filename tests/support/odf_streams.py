"""What streams of changes become: the cases of the reference implementation's own tests, and how they come out here.

From https://github.com/kamu-data/kamu-cli at f95532386, src/infra/ingest-datafusion/tests/tests:
test_merge_strategy_upsert_stream.rs (nine functions) and test_merge_strategy_changelog_stream.rs (two). The key is year
and city. All results are the same here; what the reference does not test is below, with the reason where it differs.
"""

A, R, C_FROM, C_TO = 0, 1, 2, 3

Change = tuple[int, int, str, int | None]
"""An operation, a year, a city, and how many live there."""

_THREE: list[Change] = [(A, 2020, "vancouver", 1), (A, 2020, "seattle", 2), (A, 2020, "kyiv", 3)]

UPSERTS: dict[str, tuple[list[Change], list[Change], list[Change]]] = {
    "to empty, as is": (
        [],
        _THREE,
        [(A, 2020, "kyiv", 3), (A, 2020, "seattle", 2), (A, 2020, "vancouver", 1)],
    ),
    "to empty, several of one key": (
        [],
        [
            (A, 2020, "vancouver", 1),
            (A, 2020, "vancouver", 2),
            (C_TO, 2020, "vancouver", 3),
            (A, 2020, "seattle", 2),
            (A, 2020, "kyiv", 3),
            (R, 2020, "seattle", 2),
        ],
        [(A, 2020, "kyiv", 3), (A, 2020, "vancouver", 3)],
    ),
    "unseen": (_THREE, [(A, 2020, "odessa", 4)], [(A, 2020, "odessa", 4)]),
    "nothing new, in order": (_THREE, [(A, 2020, "seattle", 2), (A, 2020, "kyiv", 3)], []),
    "nothing new, out of order": (_THREE, [(A, 2020, "kyiv", 3), (A, 2020, "seattle", 2)], []),
    "updates of two keys": (
        _THREE,
        [(A, 2020, "vancouver", 2), (C_TO, 2020, "kyiv", 4)],
        [
            (C_FROM, 2020, "kyiv", 3),
            (C_TO, 2020, "kyiv", 4),
            (C_FROM, 2020, "vancouver", 1),
            (C_TO, 2020, "vancouver", 2),
        ],
    ),
    "two updates of a key": (
        _THREE,
        [(A, 2020, "vancouver", 2), (A, 2020, "vancouver", 3)],
        [(C_FROM, 2020, "vancouver", 1), (C_TO, 2020, "vancouver", 3)],
    ),
    "a deletion, whatever it says beside the key": (
        _THREE,
        [(R, 2020, "seattle", 0)],
        [(R, 2020, "seattle", 2)],
    ),
    "an update, then a deletion": (
        _THREE,
        [(C_TO, 2020, "seattle", 3), (R, 2020, "seattle", 0)],
        [(R, 2020, "seattle", 2)],
    ),
}
"""The history so far, what comes, what is appended."""

MORE_UPSERTS: dict[str, tuple[list[Change], list[Change], list[Change]]] = {
    "a deletion of what is not there is nothing": (_THREE, [(R, 2020, "odessa", 1)], []),
    "what was taken back is appended again": (
        [*_THREE, (R, 2020, "kyiv", 3)],
        [(A, 2020, "kyiv", 9)],
        [(A, 2020, "kyiv", 9)],
    ),
    "what was corrected is corrected from what it was corrected to": (
        [*_THREE, (C_FROM, 2020, "kyiv", 3), (C_TO, 2020, "kyiv", 4)],
        [(A, 2020, "kyiv", 5)],
        [(C_FROM, 2020, "kyiv", 4), (C_TO, 2020, "kyiv", 5)],
    ),
    # The reference takes a correct-from for an update to what was, where it is the last row of its key.
    "what a correction says of before is passed over": (
        _THREE,
        [(C_FROM, 2020, "kyiv", 3), (C_TO, 2020, "kyiv", 4), (C_FROM, 2020, "seattle", 7)],
        [(C_FROM, 2020, "kyiv", 3), (C_TO, 2020, "kyiv", 4)],
    ),
    # The reference has no nulls in its cases.
    "null is a value that others differ from": (
        _THREE,
        [(A, 2020, "kyiv", None)],
        [(C_FROM, 2020, "kyiv", 3), (C_TO, 2020, "kyiv", None)],
    ),
}

CHANGELOGS: dict[str, tuple[list[Change], list[Change], list[Change]]] = {
    "to empty": (
        [],
        [*_THREE, (C_FROM, 2020, "vancouver", 1), (C_TO, 2020, "vancouver", 2)],
        [
            (A, 2020, "kyiv", 3),
            (A, 2020, "seattle", 2),
            (A, 2020, "vancouver", 1),
            (C_FROM, 2020, "vancouver", 1),
            (C_TO, 2020, "vancouver", 2),
        ],
    ),
    "unseen": (
        _THREE,
        [(A, 2020, "odessa", 4), (C_FROM, 2020, "vancouver", 1), (C_TO, 2020, "vancouver", 2)],
        [(A, 2020, "odessa", 4), (C_FROM, 2020, "vancouver", 1), (C_TO, 2020, "vancouver", 2)],
    ),
}

MORE_CHANGELOGS: dict[str, tuple[list[Change], list[Change], list[Change]]] = {
    # The reference puts all operations of a key in the order of their numbers, which makes another history of these.
    "a key that comes, goes and comes back": (
        [],
        [(A, 2020, "kyiv", 1), (R, 2020, "kyiv", 1), (A, 2020, "kyiv", 2)],
        [(A, 2020, "kyiv", 1), (R, 2020, "kyiv", 1), (A, 2020, "kyiv", 2)],
    ),
}
