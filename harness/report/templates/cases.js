
// ---- the cases: columns of the embedded data ------------------------------------------------
const data = JSON.parse($("#data").textContent);
const values = {};
const decoded = { inf: Infinity, "-inf": -Infinity };
for (const [name, { words, codes }] of Object.entries(data.texts)) {
  values[name] = (row) => words[codes[row]];
}
for (const [name, column] of Object.entries(data.numbers)) {
  values[name] = (row) => { const value = column[row]; return decoded[value] ?? value; };
}
const numberOf = (name, row) => values[name]?.(row) ?? null;
values.speed = (row) => {
  const ratio = numberOf("ratio", row);
  return ratio === null ? null : 1 / ratio;
};
values.elements = (row) => values.shape(row).split("×").reduce((most, each) => most * each, 1) || 1;
values.rows = (row) => values.elements(row) / numberOf("hidden", row);
// a shape as ids, commands and results files write it
const plainShape = (shape) => shape.replaceAll("×", "x");
values.id = (row) => [
  values.implementation(row), values.direction(row), plainShape(values.shape(row)),
  values.dtype(row), values.distribution(row),
].join("/") + values.id_rest(row);
const quoted = (word) => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`;
values.command = (row) => [
  `layernorm-bench run -i ${quoted(values.implementation(row))}`,
  `--shape ${plainShape(values.shape(row))} --dtype ${values.dtype(row)}`,
  `--distribution ${values.distribution(row)} --direction ${values.direction(row)}`,
  values.command_rest(row),
].join(" ").trim();

// ---- numbers as the rest of the page writes them --------------------------------------------
const DASH = "–";
const rounded = (value) => {
  if (value === null) return DASH;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
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
const ulps = (value, row) => {
  const error = numberOf("error_abs", row);
  if (error !== null) return `${rounded(error)}; the exact value is 0`;
  return value === null ? DASH : value === Infinity ? "not finite" : `${rounded(value)} ulp`;
};
const times = (value) => (value === null ? DASH : `${rounded(value)}x`);
const percent = (value) => (value === null ? DASH : `${rounded(value * 100)} %`);
const whole = (value) => (value === null ? DASH : value.toLocaleString("en"));
const inWords = (word) => word.replaceAll("_", " ");

// column, heading, and how its numbers are written; texts have no writer
const ALL_COLUMNS = [
  ["implementation", "Implementation"], ["mode", "Mode"], ["device", "Device"],
  ["dtype", "dtype"], ["direction", "Direction"], ["distribution", "Inputs"],
  ["shape", "Shape"], ["status", "Status"], ["error_ulp", "Error", ulps],
  ["error_output", "Output"], ["bound_ratio", "Largest share of a bound", rounded],
  ["condition", "Condition", rounded], ["latency_s", "Latency", seconds],
  ["latency_low_s", "At least", seconds], ["latency_high_s", "At most", seconds],
  ["speed", "Speed", times], ["cold_s", "Cold", seconds], ["copy_ratio", "Of copy speed", percent],
  ["peak_bytes", "Peak memory", bytes], ["saved_bytes", "Kept for a backward", bytes],
  ["operators", "Operators", whole], ["instructions", "Instructions", rounded],
  ["reason", "Reason"], ["warnings", "Warnings"], ["id", "Id"],
];
// of these others are made; any other metric of a record has a column, too
const RAW = new Set(["ratio", "peak_ratio", "hidden", "error_abs", ...ALL_COLUMNS.map(([name]) => name)]);
const OTHERS = Object.keys(data.numbers).filter((name) => !RAW.has(name));
ALL_COLUMNS.splice(-3, 0, ...OTHERS.map((name) => [name, inWords(name), rounded]));
const COLUMNS = ALL_COLUMNS.filter(([name, , write]) => !write || data.numbers[name === "speed" ? "ratio" : name]);
const headingOf = (name) => COLUMNS.find(([column]) => column === name)[1];
const CLIPPED = new Set(["reason", "id"]);
// left out on paper, which is narrow: the id holds them, or they are details
const ON_SCREEN = new Set([
  "mode", "device", "dtype", "direction", "distribution", "shape", "cold_s", "operators",
  "condition", "latency_low_s", "latency_high_s", "copy_ratio", "saved_bytes", "warnings",
]);
const look = (name, ...others) =>
  [...others, ON_SCREEN.has(name) ? "screen" : ""].filter(Boolean).join(" ");
const FACETS = ["implementation", "mode", "device", "dtype", "direction", "distribution", "status"];
const PAGE = 50;

// ---- the view: what is filtered, sorted and drawn; the address holds it -----------------------
const rows = Array.from({ length: data.count }, (_, row) => row);
let view = rows;
const FIRST = { q: "", sort: "", page: "1" };
/** What the address says, by name; a name at its first value is left out of the address. */
let state = { ...FIRST };
const ADDRESS = "#all_cases?";
const shownInAddress = () => location.hash.startsWith(ADDRESS);
const readAddress = () => {
  const found = new URLSearchParams(shownInAddress() ? location.hash.slice(ADDRESS.length) : "");
  state = { ...FIRST };
  for (const [name, value] of found) if (name in FIRST) state[name] = value;
};
const writeAddress = () => {
  const kept = Object.entries(state).filter(([name, value]) => value !== FIRST[name]);
  const words = new URLSearchParams(kept).toString();
  // an untouched view leaves the address of a section alone
  if (words || shownInAddress()) history.replaceState(null, "", words ? ADDRESS + words : "#all_cases");
};

// ---- filters ----------------------------------------------------------------------------------
const COMPARISONS = {
  "=": (a, b) => a === b, "<": (a, b) => a < b, "<=": (a, b) => a <= b,
  ">": (a, b) => a > b, ">=": (a, b) => a >= b,
};
let haystack = null;
const lowerTexts = (row) => {
  haystack ??= rows.map((each) => COLUMNS.filter(([, , write]) => !write)
    .map(([name]) => values[name](each)).join(" ").toLowerCase());
  return haystack[row];
};
/** A word of the filter as a function of a row: "a|b", "dtype=float16", "speed>1.2". */
const wordTest = (word) => {
  const [, name, sign, wanted] = word.match(/^(\w+)([<>]=?|=)(.+)$/) ?? [];
  if (!name || !(name in values)) {
    const parts = word.split("|").filter(Boolean);
    return (row) => parts.some((part) => lowerTexts(row).includes(part));
  }
  return (row) => {
    const value = values[name](row);
    if (value === null) return false;
    const isText = typeof value === "string";
    const other = isText ? wanted : wanted === "inf" ? Infinity : Number(wanted);
    return COMPARISONS[sign](isText ? plainShape(value).toLowerCase() : value, other);
  };
};
const counts = {};
for (const name of FACETS) {
  counts[name] = new Map();
  for (const row of rows) counts[name].set(values[name](row), (counts[name].get(values[name](row)) ?? 0) + 1);
}
const selects = {};
const addSelect = (name, heading, options, before) => {
  const select = make("select", { id: `choose-${name}` });
  for (const [value, words] of options) {
    const option = make("option", { text: words });
    option.value = value;
    select.append(option);
  }
  FIRST[name] = options[0][0];
  select.onchange = () => { state[name] = select.value; state.page = "1"; show(); };
  selects[name] = select;
  before.before(make("label", {}, heading, select));
};
for (const name of FACETS.filter((each) => counts[each].size > 1)) {
  const found = [...counts[name]].map(([word, number]) => [word, `${name === "implementation" ? word : inWords(word)} (${whole(number)})`]);
  addSelect(name, headingOf(name), [["", "all"], ...found], $("#reset"));
}

const filtered = () => {
  const tests = state.q.toLowerCase().split(/\s+/).filter(Boolean).map(wordTest);
  const chosen = Object.keys(selects).filter((name) => name in counts && state[name] !== "");
  return rows.filter((row) =>
    chosen.every((name) => values[name](row) === state[name]) && tests.every((test) => test(row)));
};
// missing values sort last in both directions
const sorted = (found) => {
  const sign = state.sort.startsWith("-") ? -1 : 1;
  const value = values[state.sort.replace("-", "")];
  if (!value) return found;
  return found.map((row) => [value(row), row]).sort(([a, one], [b, other]) => {
    if (a === b) return one - other;
    if (a === null || a === "") return 1;
    if (b === null || b === "") return -1;
    return (a < b ? -1 : 1) * sign;
  }).map(([, row]) => row);
};
