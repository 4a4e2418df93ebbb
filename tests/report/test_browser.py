"""The report in a browser: its controls, its explorer, its address, and what it must not do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from factories.results_factory import make_cases, make_record, make_results, make_run

from harness.records import Case, MeasurementWarning, Record, Status, WarningKind
from harness.report import write_report
from harness.store import Results

pytest.importorskip("playwright", reason="playwright is not installed")

from factories.page_reading import column, downloaded
from playwright.sync_api import Browser, Locator, Page, expect

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


# === The explorer in a browser: its picture, its table and its address say what the results say


LONG = "a_very_long_name" * 40
RIGHT_TO_LEFT = "\u202eتطبيع الطبقة\u202c"
SCRIPT = "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)>"


def view(tab: Page, page: Path, **words: str) -> None:
    """Open a page at a view, as a saved link does."""
    tab.goto("about:blank")
    tab.goto(f"{page.as_uri()}#all_cases?{urlencode(words)}")


def chosen(results: Results, keep: Callable[[Record], bool]) -> set[str]:
    return {record.case.id for record in results.records if keep(record)}


def latency_s(record: Record) -> float:
    return record.latency.per_call_s.value if record.latency else float("inf")


def dots(tab: Page) -> int:
    """Count the marks of the picture: each begins with a move."""
    paths = tab.locator("#picture .dots").all()
    return sum((path.get_attribute("d") or "").count("M") for path in paths)


def test_an_address_restores_filters_order_and_axes(
    tab: Page, page_path: Path, results: Results, tmp_path: Path
) -> None:
    view(
        tab, page_path, q="welford|one_pass", dtype="float16", sort="-latency_s",
        x="elements", y="latency_s", yscale="linear", direction="no such direction",
    )  # fmt: skip
    expect(tab.locator("#choose-dtype")).to_have_value("float16")
    expect(tab.locator("#choose-yscale")).to_have_value("linear")
    expect(tab.locator("#choose-direction")).to_have_value("")
    expect(tab.locator("#picture-title")).to_have_text("Latency against elements of x")
    rows = downloaded(tab, tmp_path / "cases.csv")
    wanted = chosen(
        results,
        lambda each: (
            each.case.dtype == "float16"
            and any(name in each.case.implementation for name in ("welford", "one_pass"))
        ),
    )
    assert set(rows) == wanted
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
    expect(tab.locator("#choose-direction")).to_have_value("forward")
    assert tab.locator("#picture .line").count() > 0


def test_comparisons_filter_by_a_column(
    tab: Page, page_path: Path, results: Results, tmp_path: Path
) -> None:
    view(tab, page_path, q="latency_s<1e-5 shape=32x256 cases_of_nothing<3")
    expect(tab.locator("#found")).to_contain_text("No case matches")
    view(tab, page_path, q="latency_s<1e-5 shape=32x256")
    rows = downloaded(tab, tmp_path / "cases.csv")
    fast = chosen(results, lambda each: each.case.shape == (32, 256) and latency_s(each) < 1e-5)
    assert len(fast) > 3
    assert set(rows) == fast


def test_arrow_keys_move_through_the_dots_and_show_the_command(tab: Page) -> None:
    tab.focus("#picture")
    tab.keyboard.press("End")
    last = tab.locator("#pointed").inner_text()
    tab.keyboard.press("ArrowLeft")
    expect(tab.locator("#pointed")).not_to_have_text(last)
    expect(tab.locator("#pointed-case")).to_contain_text("layernorm-bench run -i ")
    tab.keyboard.press("Escape")
    expect(tab.locator("#pointed-case")).to_be_empty()


def test_the_policy_stops_scripts_and_requests_from_elsewhere(
    browser: Browser, page_path: Path
) -> None:
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(page_path.as_uri())
        done = tab.evaluate(
            """async () => {
              const script = document.createElement("script");
              try { script.textContent = "window.taken = true"; } catch { /* trusted types */ }
              document.body.append(script);
              let fetched = true;
              try { await fetch("data:text/plain,x"); } catch { fetched = false; }
              return [window.taken ?? false, fetched];
            }"""
        )
        assert done == [False, False]


def test_hostile_names_are_texts_and_break_nothing(tab: Page, tmp_path: Path) -> None:
    case = next(make_cases(["cpu"], ["float32"]))
    names = (SCRIPT, LONG, RIGHT_TO_LEFT, "", "it's `$(rm -rf)`", "=1+1")
    records = [make_record(replace(case, implementation=name)) for name in names]
    broken = Record(case=replace(case, seed=5), environment="e", status=Status.ERROR, reason=SCRIPT)
    write_report(
        [Results(records=(*records, broken), runs=(make_run(name=SCRIPT),), environments={})],
        tmp_path / "hostile.html",
    )
    tab.set_viewport_size({"width": PHONE, "height": 800})
    view(tab, tmp_path / "hostile.html", y="implementation", x="error_ulp")
    assert "taken" not in tab.title().split("'")[0]
    assert dots(tab) == len(records)
    assert set(column(tab, "implementation")) >= {f"{name}" for name in names if name != LONG}
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE
    rows = downloaded(tab, tmp_path / "hostile.csv")
    # a spreadsheet would take the names for formulas
    assert rows[f"'{records[5].case.id}"]["implementation"] == "'=1+1"
    assert rows[f"'{records[5].case.id}"]["hidden"] == str(case.hidden)
    command = rows[records[4].case.id]["command"]
    assert command.startswith("""layernorm-bench run -i 'it'"'"'s `$(rm -rf)`' --shape""")


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.OK])
def test_one_case_is_a_page_even_if_it_failed(tab: Page, tmp_path: Path, status: Status) -> None:
    record = make_record(Case(implementation="two_pass", shape=(64, 8)))
    if status is Status.TIMEOUT:
        record = Record(case=record.case, environment="e", status=status, reason="too slow")
    write_report([Results(records=(record,), runs=(), environments={})], tmp_path / "one.html")
    view(tab, tmp_path / "one.html")
    expect(tab.locator("#found")).to_have_text("1 of 1 case")
    if status is Status.TIMEOUT:
        expect(tab.locator("#picture")).to_be_hidden()
    else:
        expect(tab.locator("#picture-notes")).to_contain_text("1 of 1 drawn")
        assert dots(tab) == 1


def test_a_page_of_many_names_stays_short_and_an_axis_says_that_it_shows_forty(
    tab: Page, tmp_path: Path
) -> None:
    case = Case(implementation="", shape=(64, 8))
    records = tuple(
        Record(
            case=replace(case, implementation=f"norm_{number}"),
            environment="e",
            status=Status.OK,
            instructions=1_000_000 + number,
        )
        for number in range(1000)
    )
    write_report([Results(records=records, runs=(), environments={})], tmp_path / "thousand.html")
    view(tab, tmp_path / "thousand.html", x="instructions", y="implementation")
    expect(tab.locator("#picture-notes")).to_contain_text("only the first 40 names")
    assert dots(tab) == 40
    expect(tab.locator("#found")).to_have_text("1,000 of 1,000 cases")
    assert tab.evaluate("document.documentElement.scrollHeight") < 15_000


@pytest.fixture(scope="module")
def small_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every kind of block and few elements, which axe walks through one by one."""
    path = tmp_path_factory.mktemp("small") / "page.html"
    write_report([make_results(60, devices=["cpu"], dtypes=["float32"])], path)
    return path


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, 1280, 1920])
def test_axe_finds_no_barrier(browser: Browser, small_page: Path, theme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with browser.new_context(
        color_scheme=theme, viewport={"width": width, "height": 900}
    ) as context:
        tab = context.new_page()
        tab.goto(small_page.as_uri())
        tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        tab.locator("#grid tbody th button").first.click()
        found = axe.Axe().run(tab)
        assert found.violations_count == 0, found.generate_report()
