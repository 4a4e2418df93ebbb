"""A finding is still there, gone, not installed, or cannot be run."""

from __future__ import annotations

from pathlib import Path

import pytest
from findings.findings import CASES, FIELDS, page_lines, read, run

FAKE = '''"""A title

What happens.

affected: nobody
library: {library}
versions: 0.0.1
source: nowhere, and
  a second line
reported: none found
"""

print("printed")
{last}
'''


def test_a_mistake_of_pytorch_is_still_there() -> None:
    finding = run(CASES / "01_torch_rows_summed_in_half.py")
    assert finding["status"] == "still there"
    assert finding["output"].endswith("dbias[1] 256")
    assert finding["output"] in "\n".join(page_lines([finding]))


@pytest.mark.parametrize(
    ("library", "last", "status"),
    [
        ("torch", "raise SystemExit(True)", "gone"),
        ("torch", "raise TypeError", "does not run"),
        ("no-such-library", "raise SystemExit(False)", "not installed"),
    ],
)
def test_other_findings_are_not_still_there(
    library: str, last: str, status: str, tmp_path: Path
) -> None:
    path = tmp_path / "fake.py"
    path.write_text(FAKE.format(library=library, last=last))
    assert run(path)["status"] == status


def test_every_case_has_the_form_that_the_page_needs(tmp_path: Path) -> None:
    assert all(set(FIELDS) < set(read(path)) for path in CASES.glob("*.py"))
    path = tmp_path / "long.py"
    path.write_text(FAKE.format(library="torch", last="print()\n" * 10))
    with pytest.raises(ValueError, match="10 lines"):
        read(path)
