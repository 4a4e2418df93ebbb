"""The report in a browser: its controls, its explorer, its address, and what it must not do."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from factories.results_factory import make_cases, make_record, make_results, make_run

from harness.records import Record, Status
from harness.report import build_page, write_whole
from harness.store import Results

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PHONE, SHEET, SCREEN = 390, 718, 1280  # a sheet: A4 of 794 without Chromium's margins of 10 mm
EVERY_CASE = "1,200 of 1,200 cases"
OPEN_EVERYTHING = "document.querySelectorAll('details').forEach((found) => { found.open = true })"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module; for longer it would keep asyncio from other tests."""
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser, page_path: Path) -> Iterator[Page]:
    """Open the report; the test fails if the report logs an error or makes a request."""
    context = browser.new_context(viewport={"width": SCREEN, "height": 900})
    tab = context.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("request", lambda request: problems.append(request.url))
    tab.goto(page_path.as_uri())
    yield tab
    context.close()
    assert [problem for problem in problems if not problem.startswith(("file:", "blob:"))] == []


def column(tab: Page, name: str) -> list[str]:
    """Return the texts of a column of the table of all cases."""
    headings = tab.locator("#grid thead th")
    names = [heading.get_attribute("data-column") for heading in headings.all()]
    place = names.index(name) + 1
    return tab.locator(f"#grid tbody tr > :nth-child({place})").all_inner_texts()


def downloaded(tab: Page, folder: Path) -> dict[str, dict[str, str]]:
    """Press the button for the CSV file; return its rows by id."""
    with tab.expect_download() as download:
        tab.click("#csv")
    download.value.save_as(folder / "cases.csv")
    with (folder / "cases.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def view(tab: Page, page: Path, **words: str) -> None:
    """Open a page at a view, as a saved link does."""
    tab.goto("about:blank")
    tab.goto(f"{page.as_uri()}#all_cases?{urlencode(words)}")


def view_records(tab: Page, folder: Path, *records: Record, name: str = "", **words: str) -> None:
    """Open the page of some records at a view."""
    results = Results(records=records, runs=(make_run(name=name),), environments={})
    write_whole(folder / "made.html", build_page([results]))
    view(tab, folder / "made.html", **words)


def dots(tab: Page) -> int:
    """Count the marks of the picture: each begins with a move."""
    paths = tab.locator("#picture .dots").all()
    return sum((path.get_attribute("d") or "").count("M") for path in paths)


# --- the table of all cases ----------------------------------------------------------------------


def test_the_filter_matches_every_word_and_says_when_nothing_matches(tab: Page) -> None:
    expect(tab.locator("#found")).to_have_text(EVERY_CASE)
    tab.fill("#query", "welford FLOAT16")
    expect(tab.locator("#found")).not_to_have_text(EVERY_CASE)
    assert set(column(tab, "implementation")) == {"welford"}
    assert set(column(tab, "dtype")) == {"float16"}
    tab.fill("#query", "no such case")
    expect(tab.locator("#found")).to_contain_text("No case matches")
    tab.click("#reset")
    expect(tab.locator("#found")).to_have_text(EVERY_CASE)


def test_sorting_puts_missing_values_last_in_both_directions(tab: Page) -> None:
    firsts = []
    for direction in ("ascending", "descending"):
        tab.click("#grid th[data-column=latency_s] button")
        heading = tab.locator("#grid th[data-column=latency_s]")
        expect(heading).to_have_attribute("aria-sort", direction)
        firsts.append(column(tab, "latency_s")[0])
    assert "–" not in firsts
    assert firsts[0] != firsts[1]


def test_a_facet_filters_by_its_value_and_a_card_by_its_status(tab: Page) -> None:
    tab.select_option("#choose-status", "wrong")
    assert set(column(tab, "status")) == {"wrong"}
    tab.click("a[href$='status=out_of_guarantee']")
    assert set(column(tab, "status")) == {"out of guarantee"}


def test_the_download_has_the_shown_rows_in_full_precision(
    tab: Page, results: Results, tmp_path: Path
) -> None:
    rows = downloaded(tab, tmp_path)
    assert set(rows) == {record.case.id for record in results.records}
    for record in results.records:
        if record.latency is not None and record.latency.is_valid:
            assert float(rows[record.case.id]["latency_s"]) == record.latency.per_call_s.value
    tab.select_option("#choose-status", "timeout")
    rows = downloaded(tab, tmp_path)
    assert list(rows) == column(tab, "id")
    assert {(row["status"], row["latency_s"]) for row in rows.values()} == {("timeout", "")}


# --- how it looks --------------------------------------------------------------------------------


def test_the_theme_button_changes_background_and_figures(tab: Page) -> None:
    def colours() -> list[str]:
        background = "getComputedStyle(document.body).backgroundColor"
        ink = "getComputedStyle(document.querySelector('figure text')).fill"
        return [tab.evaluate(background), tab.evaluate(ink)]

    before = colours()
    tab.click("#theme")
    assert [old == new for old, new in zip(before, colours(), strict=True)] == [False, False]
    tab.click("#theme")
    assert colours() == before


@pytest.mark.parametrize(
    ("width", "media"), [(PHONE, "screen"), (SCREEN, "screen"), (SHEET, "print")]
)
def test_nothing_is_wider_than_the_screen_or_a_printed_page(
    tab: Page, width: int, media: str
) -> None:
    tab.set_viewport_size({"width": width, "height": 800})
    tab.emulate_media(media=media)
    tab.evaluate(OPEN_EVERYTHING)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    kind = "table" if media == "print" else "nav a"
    ends = tab.evaluate(
        f"[...document.querySelectorAll('{kind}')].map((e) => e.getBoundingClientRect().right)"
    )
    assert len(ends) > 5
    assert max(ends) <= width


def is_shown(element: Locator) -> bool:
    return element.bounding_box() is not None


def test_the_switch_changes_the_sentence_and_the_tables(tab: Page) -> None:
    rows = tab.locator("#which_implementation_to_run table").first.locator("tbody tr")
    seen = []
    for option in tab.locator("#requirement input").all():
        option.focus()
        tab.keyboard.press("Space")
        (sentence,) = filter(is_shown, tab.locator(".answer .need").all())
        texts = [row.inner_text() for row in rows.all() if is_shown(row)]
        seen.append((sentence.inner_text(), texts))
    assert len({sentence for sentence, _ in seen}) == len(seen) > 2
    assert len({len(texts) for _, texts in seen}) == 1
    assert seen[0][1] != seen[-1][1]


def test_a_term_shows_its_definition_to_pointer_and_keyboard(tab: Page) -> None:
    term = tab.locator("a.term:visible").first
    shown = "term => getComputedStyle(term, '::after').content"
    definition = term.get_attribute("data-definition")
    assert definition
    assert term.evaluate(shown) == "none"
    term.hover()
    assert definition in term.evaluate(shown)
    tab.mouse.move(0, 0)
    term.evaluate("term => term.focus({ focusVisible: true })")
    assert definition in term.evaluate(shown)
    tab.keyboard.press("Enter")
    assert tab.url.endswith(term.get_attribute("href") or "no link")


# --- the explorer: its picture, its table and its address say what the results say ----------------


def test_an_address_restores_filters_order_and_axes(
    tab: Page, page_path: Path, tmp_path: Path
) -> None:
    view(
        tab, page_path, q="welford|one_pass", dtype="float16", sort="-latency_s",
        x="elements", y="latency_s", yscale="linear",
    )  # fmt: skip
    expect(tab.locator("#choose-dtype")).to_have_value("float16")
    expect(tab.locator("#choose-yscale")).to_have_value("linear")
    expect(tab.locator("#picture-title")).to_have_text("Latency against elements of x")
    rows = downloaded(tab, tmp_path)
    assert {row["dtype"] for row in rows.values()} == {"float16"}
    names = {row["implementation"] for row in rows.values()}
    assert names == {"welford", "one_pass", "one_pass_input_dtype"}
    timed = [float(row["latency_s"]) for row in rows.values() if row["latency_s"]]
    assert timed == sorted(timed, reverse=True)
    assert dots(tab) == len(timed)


def test_the_address_follows_the_controls_and_links_of_the_page_set_them(tab: Page) -> None:
    tab.select_option("#choose-x", "condition")
    tab.select_option("#choose-y", "error_ulp")
    tab.fill("#query", "dtype=float32")
    words = "#all_cases?q=dtype%3Dfloat32&x=condition&y=error_ulp"
    expect(tab).to_have_url(re.compile(f"{re.escape(words)}$"))
    tab.click("#views a:has-text('Latency against size')")
    expect(tab.locator("#choose-y")).to_have_value("latency_s")
    expect(tab.locator("#query")).to_have_value("")


def test_arrow_keys_move_through_the_dots_and_show_the_command(tab: Page) -> None:
    tab.focus("#picture")
    tab.keyboard.press("End")
    last = tab.locator("#pointed-case").inner_text()
    tab.keyboard.press("ArrowLeft")
    expect(tab.locator("#pointed-case")).not_to_have_text(last)
    expect(tab.locator("#pointed-case")).to_contain_text("layernorm-bench run -i ")
    tab.keyboard.press("Escape")
    expect(tab.locator("#pointed-case")).to_be_empty()


# --- whatever the results hold -------------------------------------------------------------------


SCRIPT = "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)>"
HOSTILE = (SCRIPT, "\u202eتطبيع الطبقة\u202c", "", "it's `$(rm -rf)`", "=1+1")


def test_hostile_names_are_texts_and_break_nothing(tab: Page, tmp_path: Path) -> None:
    case = next(make_cases(["cpu"], ["float32"]))
    records = [make_record(replace(case, implementation=name)) for name in HOSTILE]
    broken = Record(case=replace(case, seed=5), environment="e", status=Status.ERROR, reason=SCRIPT)
    words = {"y": "implementation", "x": "error_ulp"}
    view_records(tab, tmp_path, *records, broken, name=SCRIPT, **words)
    assert "taken" not in tab.title().split("'")[0]
    assert dots(tab) == len(records)
    assert set(column(tab, "implementation")) >= {*HOSTILE}
    rows = downloaded(tab, tmp_path)
    # a spreadsheet would take the names for formulas
    assert rows[f"'{records[4].case.id}"]["implementation"] == "'=1+1"
    command = rows[records[3].case.id]["command"]
    assert command.startswith("""layernorm-bench run -i 'it'"'"'s `$(rm -rf)`' --shape""")


@pytest.mark.parametrize(("theme", "width"), [("light", SCREEN), ("dark", PHONE)])
def test_axe_finds_no_barrier(browser: Browser, tmp_path: Path, theme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # every kind of block, and few elements, which axe walks through one by one
    results = make_results(60, devices=["cpu"], dtypes=["float32"])
    write_whole(tmp_path / "page.html", build_page([results]))
    size = {"width": width, "height": 900}
    with browser.new_context(color_scheme=theme, viewport=size) as context:
        tab = context.new_page()
        tab.goto((tmp_path / "page.html").as_uri())
        tab.evaluate(OPEN_EVERYTHING)
        tab.locator("#grid tbody th button").first.click()
        found = axe.Axe().run(tab)
        assert found.violations_count == 0, found.generate_report()
