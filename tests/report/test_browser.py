"""The report in a browser: it makes no request, reports no error, and its controls work."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.records import MeasurementWarning, WarningKind
from harness.report import write_report
from harness.store import Results

pytest.importorskip("playwright", reason="playwright is not installed")

from factories.page_reading import column, downloaded
from playwright.sync_api import Locator, Page, expect

COUNT = 1200  # cases of the fixture `results`
PHONE, SCREEN = 390, 1280
EACH_THEME = pytest.mark.parametrize("tab", ["light", "dark"], indirect=True)


def test_the_filter_matches_every_word_and_says_when_nothing_matches(tab: Page) -> None:
    expect(tab.locator("#found")).to_have_text(f"{COUNT:,} of {COUNT:,} cases")
    tab.fill("#query", "welford FLOAT16")
    expect(tab.locator("#found")).not_to_have_text(re.compile(f"^{COUNT:,} of"))
    assert set(column(tab, "implementation")) == {"welford"}
    assert set(column(tab, "dtype")) == {"float16"}
    tab.fill("#query", "no such case")
    expect(tab.locator("#found")).to_contain_text("No case matches")
    assert tab.locator("#grid tbody tr").count() == 0
    tab.click("#reset")
    expect(tab.locator("#found")).to_have_text(f"{COUNT:,} of {COUNT:,} cases")


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
    tab.select_option("#choose-dtype", "float16")
    assert set(column(tab, "status")) == {"wrong"}
    assert set(column(tab, "dtype")) == {"float16"}
    tab.click("a[href$='status=out_of_guarantee']")
    assert set(column(tab, "status")) == {"out of guarantee"}


def test_the_download_has_the_shown_rows_in_full_precision(
    tab: Page, results: Results, tmp_path: Path
) -> None:
    rows = downloaded(tab, tmp_path / "cases.csv")
    for record in results.records:
        if record.latency is not None and record.latency.is_valid:
            row = rows[record.case.id]
            assert row["shape"] == "x".join(map(str, record.case.shape))
            assert float(row["latency_s"]) == record.latency.per_call_s.value
    tab.select_option("#choose-status", "timeout")
    rows = downloaded(tab, tmp_path / "timeouts.csv")
    assert list(rows) == column(tab, "id")
    assert {(row["status"], row["reason"], row["latency_s"]) for row in rows.values()} == {
        ("timeout", "ran past its limit of 60 s", "")
    }


@EACH_THEME
def test_the_theme_button_changes_background_and_figures(tab: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('figure text')).fill"
    before = tab.evaluate(background), tab.evaluate(ink)
    tab.click("#theme")
    after = tab.evaluate(background), tab.evaluate(ink)
    assert before[0] != after[0]
    assert before[1] != after[1]
    tab.click("#theme")
    assert (tab.evaluate(background), tab.evaluate(ink)) == before


def test_a_legend_highlights_one_implementation(tab: Page) -> None:
    figure = tab.locator("figure", has=tab.locator(".keys button")).first
    button = figure.locator(".keys button").nth(1)
    series = button.get_attribute("data-series")
    button.click()
    shown = figure.locator(".series-shown")
    assert shown.count() > 0
    assert all(series in (found.get_attribute("class") or "") for found in shown.all())
    button.click()
    assert figure.locator(".series-shown").count() == 0


@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_nothing_is_wider_than_the_screen(tab: Page, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 800})
    ends = (
        "[...document.querySelectorAll('nav a')].map((each) => each.getBoundingClientRect().right)"
    )
    assert max(tab.evaluate(ends)) <= width
    tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def shown(element: Locator) -> bool:
    return element.bounding_box() is not None


def test_the_switch_changes_the_sentence_and_the_tables(tab: Page) -> None:
    rows = tab.locator("#which_implementation_to_run table").first.locator("tbody tr")
    seen = []
    for option in tab.locator("#requirement input").all():
        option.focus()
        tab.keyboard.press("Space")
        sentences = [
            found.inner_text() for found in tab.locator(".answer .need").all() if shown(found)
        ]
        assert len(sentences) == 1
        seen.append((sentences[0], [found.inner_text() for found in rows.all() if shown(found)]))
    assert len({sentence for sentence, _ in seen}) == len(seen) > 2
    assert len({len(texts) for _, texts in seen}) == 1
    assert seen[0][1] != seen[-1][1]


def test_no_word_is_split_on_a_phone(tab: Page, results: Results, tmp_path: Path) -> None:
    kinds = (WarningKind.TOO_FEW_SAMPLES, WarningKind.PAGE_FAULTS)
    warnings = tuple(
        MeasurementWarning(kind=kind, advice="give the case more time") for kind in kinds
    )
    records = tuple(replace(record, warnings=warnings) for record in results.records[:40])
    write_report([replace(results, records=records)], tmp_path / "warnings.html")
    tab.goto((tmp_path / "warnings.html").as_uri())
    tab.set_viewport_size({"width": PHONE, "height": 800})
    split_words = tab.evaluate(
        """() => [
          ...document.querySelectorAll("#failures_and_warnings :is(tbody th,.long:not(:has(code)))")
        ].flatMap((cell) => {
          const range = document.createRange();
          const found = [];
          const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
          while (walk.nextNode()) {
            for (const word of walk.currentNode.data.matchAll(/[a-z]+/g)) {
              range.setStart(walk.currentNode, word.index);
              range.setEnd(walk.currentNode, word.index + word[0].length);
              if (range.getClientRects().length > 1) found.push(word[0]);
            }
          }
          return found;
        })"""
    )
    assert tab.locator("#failures_and_warnings tbody th").count() >= len(kinds)
    assert split_words == []


# --- print ---------------------------------------------------------------------------------------


def test_no_table_is_wider_than_a_printed_page(tab: Page) -> None:
    sheet = 718  # CSS pixels: A4 is 794 wide, Chromium's margins take 10 mm on each side
    tab.set_viewport_size({"width": sheet, "height": 1000})
    tab.emulate_media(media="print")
    tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= sheet
    widths = tab.evaluate(
        "[...document.querySelectorAll('table')].map((each) => each.getBoundingClientRect().right)"
    )
    assert len(widths) > 5
    assert max(widths) <= sheet


@EACH_THEME
def test_text_and_lines_have_enough_contrast(tab: Page) -> None:
    """Contrast of 4.5 for text, 3 for lines: WCAG 2.2, success criteria 1.4.3 and 1.4.11."""
    ratios = tab.evaluate(
        """() => {
          const sample = document.body.appendChild(document.createElement("span"));
          const luminance = (name) => {
            sample.style.color = `var(${name})`;
            const parts = getComputedStyle(sample).color.match(/\\d+/g).map((each) => each / 255)
              .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
          };
          const pairs = [["ink", "bg"], ["ink", "card"], ["muted", "bg"], ["muted", "card"],
            ["muted", "row"], ["accent", "card"], ["good", "good-bg"], ["good", "card"],
            ["inexact", "inexact-bg"], ["inexact", "card"],
            ["bad", "bad-bg"], ["bad", "card"], ["warn", "warn-bg"], ["warn", "card"]];
          for (let each = 0; each < 12; each += 1) pairs.push([`series-${each}`, "card"]);
          return Object.fromEntries(pairs.map(([text, ground]) => {
            const [a, b] = [luminance(`--${text}`), luminance(`--${ground}`)];
            return [`${text} on ${ground}`, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
          }));
        }"""
    )
    least = {pair: 3.0 if pair.startswith("series") else 4.5 for pair in ratios}
    assert {pair: ratio for pair, ratio in ratios.items() if not ratio >= least[pair]} == {}


def test_a_term_shows_its_definition_to_pointer_and_keyboard(tab: Page) -> None:
    term = tab.locator("a.term:visible").first
    shown = "term => getComputedStyle(term, '::after').content"
    assert term.evaluate(shown) == "none"
    term.hover()
    definition = term.get_attribute("data-definition")
    assert definition
    assert definition in term.evaluate(shown)
    tab.mouse.move(0, 0)
    assert term.evaluate(shown) == "none"
    term.evaluate("term => term.focus({ focusVisible: true })")
    assert definition in term.evaluate(shown)
    tab.keyboard.press("Enter")
    assert tab.url.endswith(term.get_attribute("href") or "no link")
