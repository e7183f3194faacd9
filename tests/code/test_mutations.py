"""Whatever edit changes what a function gives changes its fingerprint, and edits without meaning change none."""

import pytest

from support.code_mutations import sample


def judged(edits: int, meaningless: int, seed: int) -> None:
    with sample(seed) as mutations:
        verdict = mutations.judge(edits, meaningless)
    assert verdict.unsteady == []
    assert verdict.opaque == {}
    assert verdict.effective.total() > edits / 2
    assert verdict.missed == []
    assert verdict.needless_share <= 0.02


def test_no_edit_is_missed() -> None:
    judged(edits=32, meaningless=8, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_edit_of_a_thousand_is_missed() -> None:
    judged(edits=1000, meaningless=200, seed=2)
