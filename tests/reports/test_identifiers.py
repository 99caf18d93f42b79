"""Identifiers, `Kind` and docs/verdicts.md are complete and say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.reports.identifiers import PAGE, RULES, Level, Rule, rule_of

TEXT = (Path(__file__).parents[2] / PAGE).read_text()
SECTIONS = dict(re.findall(r"^## (.+)\n\n((?:(?!^## ).*\n?)+)", TEXT, re.M))


def test_identifiers_are_never_renumbered():
    """Append to this list; whoever changes a line of it breaks baselines and suppressions."""
    assert [rule.title for rule in RULES] == [
        "MRC000 ok",
        "MRC001 double-computed",
        "MRC002 skipped",
        "MRC003 unwritten state",
        "MRC004 foreign state",
        "MRC005 precision",
        "MRC006 refused",
        "MRC007 reuse lost",
        "MRC008 vacuous",
        "MRC009 engine failure",
        "MRC010 disagreement",
    ]


def test_every_kind_has_one_identifier():
    assert sorted(rule.kind for rule in RULES) == sorted(Kind)
    assert [rule_of(str(kind)).kind for kind in Kind] == list(Kind)
    with pytest.raises(ValueError, match="miscomputed"):
        rule_of("miscomputed")


def test_only_what_is_right_is_a_note_and_wrong_output_is_an_error():
    assert [rule.kind for rule in RULES if rule.level is Level.NOTE] == [Kind.OK]
    right_but_dear = {Kind.PRECISION, Kind.REFUSED, Kind.REUSE_LOST, Kind.VACUOUS}
    assert {rule.kind for rule in RULES if rule.level is Level.WARNING} == right_but_dear


def test_the_page_has_a_section_for_each_identifier_and_no_other():
    assert list(SECTIONS) == [rule.title for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_section_says_what_the_program_says(rule: Rule):
    section = SECTIONS[rule.title]
    first, *paragraphs = [" ".join(paragraph.split()) for paragraph in section.strip().split("\n\n")]
    assert first == rule.meaning
    assert re.findall(r"^\*\*(.+?)\.\*\*", section, re.M) == ["Measured", "Likely causes", "Known issues", "What to do"]
    assert paragraphs[-1].startswith(f"**What to do.** {rule.advice.rstrip('.')}")
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| [{rule.id}]"))
    _, link, kind, level, fails, _ = (field.strip() for field in row.split("|"))
    assert (link, kind, level) == (f"[{rule.id}](#{rule.anchor})", rule.kind, rule.level)
    assert (fails == "yes") == rule.kind.is_discrepancy


def test_names_are_words_without_spaces():
    assert [rule.name for rule in RULES][1:4] == ["DoubleComputed", "Skipped", "UnwrittenState"]
    assert rule_of(Kind.REUSE_LOST).link == "docs/verdicts.md#mrc007-reuse-lost"
