"""The definitions on the page are those of the documentation."""

import json
import os
import re
from pathlib import Path

from harness.report import document
from harness.report.document import definitions, with_terms

DOCS = Path(__file__).parents[2] / "docs" / "glossary.md"
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def test_the_package_has_the_definitions_of_the_documentation() -> None:
    text = DOCS.read_text(encoding="utf-8")
    sections = re.findall(r"^### (.*)\n\n((?:.+\n|\n(?!#))*)", text, re.MULTILINE)
    plain = {
        heading: " ".join(LINK.sub(r"\1", body).replace("`", "").replace("*", "").split())
        for heading, body in sections
        if heading in definitions()
    }
    path = Path(document.__file__).with_name("glossary.json")
    if os.environ.get("WRITE_GOLDEN"):
        written = json.dumps(plain, indent=1, ensure_ascii=False)
        path.write_text(f"{written}\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == plain


def test_the_first_use_of_a_term_leads_to_its_definition_and_text_is_escaped() -> None:
    found = with_terms("Errors <b> in ulp; 0.5 ulp is correctly rounded, pulp is not.")
    assert found.count('<a class="term" href="#term-ulp"') == 1
    assert definitions()["ulp"].startswith("Unit in the last place")
    assert "&lt;b&gt;" in found
    assert "pulp is not" in found
