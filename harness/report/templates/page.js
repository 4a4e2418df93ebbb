"use strict";
(() => {
  const $ = (selector) => document.querySelector(selector);
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "text") element.textContent = value;
      else if (value !== "") element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };

  // ---- theme: that of the system until the button is pressed --------------------------------
  const root = document.documentElement;
  const themeButton = $("#theme");
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const showTheme = () => {
    themeButton.setAttribute("aria-pressed", isDark());
    themeButton.textContent = isDark() ? "Light theme" : "Dark theme";
  };
  themeButton.onclick = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  };
  showTheme();

  // ---- printing opens folded blocks ---------------------------------------------------------
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    for (const each of unfolded) each.open = true;
  });
  addEventListener("afterprint", () => {
    for (const each of unfolded) each.open = false;
  });

  // ---- legends: highlight one implementation ------------------------------------------------
  for (const figure of document.querySelectorAll("figure")) {
    const buttons = [...figure.querySelectorAll(".keys button")];
    for (const button of buttons) {
      button.onclick = () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        for (const each of buttons) each.setAttribute("aria-pressed", on && each === button);
        figure.classList.toggle("focused", on);
        for (const drawn of figure.querySelectorAll('[class^="series-"]')) {
          drawn.classList.toggle("series-shown", on && drawn.classList.contains(button.dataset.series));
        }
      };
    }
  }

  // ---- the cases ----------------------------------------------------------------------------
  const data = JSON.parse($("#data").textContent);
  const text = (name) => {
    const { words, codes } = data.texts[name];
    return (row) => words[codes[row]];
  };
  const values = {};
  for (const name of Object.keys(data.texts)) values[name] = text(name);
  for (const [name, column] of Object.entries(data.numbers)) {
    values[name] = (row) => (column[row] === "inf" ? Infinity : column[row]);
  }
  values.speed = (row) => {
    const ratio = values.ratio(row);
    return ratio === null ? null : 1 / ratio;
  };
  // a shape as ids, commands and results files write it
  const plainShape = (shape) => shape.replaceAll("×", "x");
  values.id = (row) => [
    values.implementation(row), values.direction(row), plainShape(values.shape(row)),
    values.dtype(row), values.distribution(row),
  ].join("/") + values.id_rest(row);

  // ---- numbers as the rest of the page writes them ------------------------------------------
  const DASH = "–";
  const rounded = (value) => {
    if (value === null) return DASH;
    if (value === Infinity) return "∞";
    if (value === 0) return "0";
    const exponent = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3)))));
    if (exponent >= -4 && exponent < 5) {
      return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 7 });
    }
    const digits = { "-": "⁻" };
    [..."⁰¹²³⁴⁵⁶⁷⁸⁹"].forEach((each, digit) => { digits[digit] = each; });
    const power = [...String(exponent)].map((each) => digits[each]).join("");
    return `${Number((value / 10 ** exponent).toFixed(2))} × 10${power}`;
  };
  const prefixed = (steps) => (value) => {
    if (value === null || value === 0 || !Number.isFinite(value)) return rounded(value);
    const [size, unit] = steps.find(([each]) => Math.abs(value) >= each) ?? steps.at(-1);
    return `${rounded(value / size)} ${unit}`;
  };
  const seconds = prefixed([[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]);
  const bytes = prefixed([[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]);
  const ulps = (value) => value === null ? DASH : value === Infinity ? "not finite" : `${rounded(value)} ulp`;
  const times = (value) => (value === null ? DASH : `${rounded(value)}×`);
  const percent = (value) => (value === null ? DASH : `${rounded(value * 100)} %`);

  // column, heading, and how its numbers are written; texts have no writer
  const COLUMNS = [
    ["implementation", "Implementation"], ["mode", "Mode"], ["place", "Device"],
    ["dtype", "dtype"], ["direction", "Direction"], ["distribution", "Inputs"],
    ["shape", "Shape"], ["status", "Status"], ["error_ulp", "Error", ulps],
    ["error_output", "of"], ["bound_ratio", "Of bound", rounded],
    ["condition", "Condition", rounded], ["latency_s", "Latency", seconds],
    ["latency_low_s", "from", seconds], ["latency_high_s", "to", seconds],
    ["speed", "Speed", times], ["copy_ratio", "Of copy speed", percent],
    ["peak_bytes", "Peak memory", bytes], ["saved_bytes", "Kept", bytes],
    ["reason", "Reason"], ["warnings", "Warnings"], ["id", "Id"],
  ];
  const CLIPPED = new Set(["reason", "id"]);
  // left out on paper, which is narrow: the id holds them, or they are details
  const ON_SCREEN = new Set([
    "mode", "place", "dtype", "direction", "distribution", "shape",
    "condition", "latency_low_s", "latency_high_s", "copy_ratio", "saved_bytes", "warnings",
  ]);
  const look = (name, ...others) =>
    [...others, ON_SCREEN.has(name) ? "screen" : ""].filter(Boolean).join(" ");
  const FACETS = ["implementation", "mode", "place", "dtype", "direction", "distribution", "status"];
  const PAGE = 50;

  const rows = Array.from({ length: data.count }, (_, row) => row);
  const haystack = rows.map((row) =>
    COLUMNS.filter(([, , write]) => !write).map(([name]) => values[name](row)).join(" ").toLowerCase());
  let sort = null;
  let page = 0;
  let view = rows;

  const selects = {};
  for (const name of FACETS) {
    const found = new Map();
    for (const row of rows) found.set(values[name](row), (found.get(values[name](row)) ?? 0) + 1);
    if (found.size < 2) continue;
    const select = make("select", { id: `facet-${name}` }, make("option", { text: "all" }));
    select.options[0].value = "";
    for (const [word, number] of found) {
      select.append(make("option", { value: word, text: `${word.replaceAll("_", " ")} (${number})` }));
    }
    select.onchange = () => show(0);
    selects[name] = select;
    const heading = COLUMNS.find(([column]) => column === name)[1];
    $("#reset").before(make("label", {}, heading, select));
  }

  const headings = make("tr");
  for (const [name, heading, write] of COLUMNS) {
    const button = make("button", { type: "button", text: heading });
    button.onclick = () => {
      sort = { name, sign: sort?.name === name ? -sort.sign : 1 };
      show(0);
    };
    headings.append(make("th", { scope: "col", "data-column": name, class: look(name, write ? "n" : "") }, button));
  }
  $("#grid thead").append(headings);

  const pill = (status) => make("span", { class: `pill ${status}`, text: status.replaceAll("_", " ") });
  const drawn = (row) => make("tr", {}, ...COLUMNS.map(([name, , write], place) => {
    const value = values[name](row);
    if (name === "status") return make("td", { title: values.reason(row) }, pill(value));
    if (place === 0) return make("th", { scope: "row", text: value });
    if (write) return make("td", { class: look(name, "n"), text: write(value) });
    const clipped = CLIPPED.has(name);
    return make("td", {
      class: look(name, clipped ? "clip" : ""), title: clipped ? value : "", text: value,
    });
  }));

  // missing values sort last in both directions
  const compared = ({ name, sign }) => (one, other) => {
    const [a, b] = [values[name](one), values[name](other)];
    if (a === b) return one - other;
    if (a === null || a === "") return 1;
    if (b === null || b === "") return -1;
    return (a < b ? -1 : 1) * sign;
  };

  const show = (wanted) => {
    const words = $("#query").value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = Object.entries(selects).filter(([, select]) => select.value !== "");
    view = rows.filter((row) =>
      chosen.every(([name, select]) => values[name](row) === select.value)
      && words.every((word) => haystack[row].includes(word)));
    if (sort) view.sort(compared(sort));
    for (const heading of headings.children) {
      const on = sort?.name === heading.dataset.column;
      if (on) heading.setAttribute("aria-sort", sort.sign > 0 ? "ascending" : "descending");
      else heading.removeAttribute("aria-sort");
      const name = COLUMNS.find(([column]) => column === heading.dataset.column)[1];
      heading.firstChild.textContent = on ? `${name} ${sort.sign > 0 ? "▲" : "▼"}` : name;
    }
    const pages = Math.max(1, Math.ceil(view.length / PAGE));
    page = Math.min(Math.max(wanted, 0), pages - 1);
    $("#grid tbody").replaceChildren(...view.slice(page * PAGE, (page + 1) * PAGE).map(drawn));
    $("#found").textContent = view.length
      ? `${view.length.toLocaleString("en")} of ${data.count.toLocaleString("en")} cases`
      : "No case matches; loosen the filter or press Reset";
    $("#where").textContent = `page ${page + 1} of ${pages}`;
    $("#previous").disabled = page === 0;
    $("#next").disabled = page === pages - 1;
    $("#grid-scroll").scrollTop = 0;
  };

  let waiting;
  $("#query").oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => show(0), 80);
  };
  $("#previous").onclick = () => show(page - 1);
  $("#next").onclick = () => show(page + 1);
  const reset = () => {
    $("#query").value = "";
    for (const select of Object.values(selects)) select.value = "";
    sort = null;
  };
  $("#reset").onclick = () => { reset(); show(0); };
  for (const link of document.querySelectorAll("a[data-status]")) {
    link.addEventListener("click", () => {
      reset();
      if (selects.status) selects.status.value = link.dataset.status;
      show(0);
    });
  }

  $("#csv").onclick = () => {
    const names = ["id", ...Object.keys(values).filter((name) => name !== "id" && name !== "id_rest")];
    const quoted = (value) => {
      if (value === null) return "";
      const word = value === Infinity ? "inf" : String(value);
      return /[",\r\n]/.test(word) ? `"${word.replaceAll('"', '""')}"` : word;
    };
    const written = (name, row) =>
      name === "shape" ? plainShape(values.shape(row)) : values[name](row);
    const lines = view.map((row) => names.map((name) => quoted(written(name, row))).join(","));
    const file = new Blob([[names.join(","), ...lines].join("\n"), "\n"], { type: "text/csv" });
    const link = make("a", { download: "cases.csv", href: URL.createObjectURL(file) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  show(0);
})();
