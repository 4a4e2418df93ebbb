
// ---- the picture of the cases: axes, colour and scales are the reader's choice ------------------
const AXES = ["x", "y", "colour", "xscale", "yscale"];
const SIZES = [["elements", "Elements of x", rounded], ["rows", "Rows", rounded], ["hidden", "Row length", rounded]];
const MEASURED = COLUMNS.filter(([, , write]) => write);
const NUMERIC = new Map([...SIZES, ...MEASURED].map(([name, , write]) => [name, write]));
const WORDS = COLUMNS.filter(([name]) => FACETS.includes(name) || name === "shape")
  .filter(([name]) => new Set(data.texts[name].words).size > 1 || name === "implementation");
const NAMES = {
  ...Object.fromEntries([...SIZES, ...COLUMNS]), speed: "Speed relative to native",
  error_ulp: "Largest error", bound_ratio: "Error / its bound", condition: "Condition number",
  latency_low_s: "Latency, low end", latency_high_s: "Latency, high end", cold_s: "Cold latency",
  saved_bytes: "Bytes kept for backward",
};
const MOST_BANDS = 40;  // names on an axis: 40 take 900 px
const MOST_LINES = 60;  // more lines hide each other
const COLOURS = 12;  // page.css has as many

// names of implementations are written as they are typed
const shownWord = (name, word) => name === "implementation" ? word : inWords(word);

const picture = $("#picture");
const svgOf = (tag, attributes = {}, text = null) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return element;
};
// five shapes and twelve colours make sixty marks, told apart without colour
const MARKS = [
  (x, y) => `M${x - 3.5} ${y}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z`,
  (x, y) => `M${x - 3} ${y - 3}h6v6h-6z`,
  (x, y) => `M${x} ${y - 4.4}l4.4 4.4l-4.4 4.4l-4.4-4.4z`,
  (x, y) => `M${x} ${y - 4}l4 7h-8z`,
  (x, y) => `M${x} ${y + 4}l4-7h-8z`,
];
const tenth = (value) => Math.round(value * 10) / 10;

const named = ([name, heading]) => [name, NAMES[name] ?? heading];
const has = (name) => NUMERIC.has(name) && rows.some((row) => Number.isFinite(numberOf(name, row)));
const isMeasured = MEASURED.some(([name]) => has(name));
const LAYOUT = has("speed") ? ["speed", "implementation"] : ["condition", "error_ulp"];
{
  const end = $("#picture-end");
  const numbers = [...SIZES, ...MEASURED].filter(([name]) => has(name)).map(named);
  const both = [...numbers, ...WORDS.map(named)];
  const first = (wanted, options) =>
    [...options].sort(([one], [other]) => (other === wanted) - (one === wanted));
  const scales = [["log", "logarithmic"], ["linear", "linear"]];
  addSelect("x", "Horizontal axis", first(LAYOUT[0], both), end);
  addSelect("xscale", "Its scale", scales, end);
  addSelect("y", "Vertical axis", first(LAYOUT[1], both), end);
  addSelect("yscale", "Its scale", scales, end);
  const colour = LAYOUT[1] === "implementation" ? "direction" : "implementation";
  addSelect("colour", "Colour", first(colour, WORDS.map(named)), end);
}

/** The places of an axis of names: one band each, and dots spread within it. */
const bands = (name, found, length) => {
  const words = [...new Set(found.map(values[name]))].sort((one, other) =>
    data.texts[name].words.indexOf(one) - data.texts[name].words.indexOf(other));
  const kept = new Map(words.slice(0, MOST_BANDS).map((word, place) => [word, place]));
  const size = length / Math.max(kept.size, 1);
  return {
    words: kept, isBands: true, left: words.length - kept.size,
    ticks: [...kept].map(([word, place]) => ({ at: (place + 0.5) * size, text: shownWord(name, word) })),
    at: (row) => {
      const place = kept.get(values[name](row));
      // the golden ratio spreads neighbours evenly
      return place === undefined ? null : (place + 0.2 + 0.6 * ((row * 0.618034) % 1)) * size;
    },
  };
};
/** The places of an axis of numbers; zeros of a logarithm and infinities go to its ends. */
const scale = (name, found, length, isLog) => {
  const raw = (row) => numberOf(name, row);
  const bend = isLog ? Math.log10 : Number;
  let [low, high] = [Infinity, -Infinity];
  for (const row of found) {
    const value = raw(row);
    if (value === null || !Number.isFinite(value) || (isLog && value <= 0)) continue;
    low = Math.min(low, bend(value));
    high = Math.max(high, bend(value));
  }
  if (low > high) [low, high] = isLog ? [0, 1] : [0, 1];
  if (!isLog) low = Math.min(low, 0);
  const margin = Math.max((high - low) * 0.04, isLog ? 0.05 : Math.abs(high || 1) * 0.02);
  [low, high] = [low - margin, high + margin];
  const place = (bent) => ((bent - low) / (high - low)) * length;
  const ticks = steps(low, high, isLog, Math.max(3, length / 75)).map((value) =>
    ({ at: place(bend(value)), text: NUMERIC.get(name)(value).replace(/^1 × (?=10)/, "") }));
  const isOff = (value) => !Number.isFinite(value) || (isLog && value <= 0);
  return {
    ticks, isOff: (row) => isOff(raw(row)),
    at: (row) => {
      const value = raw(row);
      if (value === null) return null;
      return isOff(value) ? (value > 0 ? length : 0) : place(bend(value));
    },
  };
};
const steps = (low, high, isLog, most) => {
  const found = [];
  if (isLog && high - low > 1.5) {
    const step = Math.ceil((high - low) / most);
    for (let each = Math.ceil(low); each <= high; each += step) found.push(10 ** each);
    return found;
  }
  const [from, to] = isLog ? [10 ** low, 10 ** high] : [low, high];
  const rough = (to - from) / most;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((each) => each * unit >= rough);
  for (let each = Math.ceil(from / step); each * step <= to; each += 1) {
    if (!isLog || each > 0) found.push(Number((each * step).toPrecision(12)));
  }
  return found;
};

// the axes that may differ along a line; all others are the same
const FREED = {
  elements: ["shape", "hidden", "rows"], rows: ["shape", "rows"], hidden: ["shape", "hidden"],
  condition: ["distribution"],
};
const lineOf = (row) => [
  ...["implementation", "mode", "device", "dtype", "direction", "distribution", "id_rest"],
  ...(state.x === "condition" ? ["shape"] : ["rows", "hidden"]),
].filter((name) => !FREED[state.x].includes(name)).map((name) => values[name](row)).join("\n");

let dots = [];
let pointed = -1;
const clipped = (text, most) => text.length <= most
  ? text : `${text.slice(0, Math.ceil(most / 3))}…${text.slice(1 - Math.floor((most * 2) / 3))}`;

const showPicture = () => {
  picture.closest("figure").hidden = !isMeasured;
  if (!isMeasured) return;
  const width = Math.max(picture.clientWidth, 260);
  const yWords = data.texts[state.y] ? new Set(view.map(values[state.y])) : null;
  const longest = yWords ? Math.max(0, ...[...yWords].slice(0, MOST_BANDS).map((each) => each.length)) : 0;
  const letters = yWords ? Math.min(longest, Math.floor(width * 0.05)) : 0;
  const box = { left: yWords ? letters * 6.9 + 16 : 78, right: 14, top: 12, bottom: 50 };
  const tall = data.texts[state.x] ? 64 : 0;
  box.bottom += tall;
  const height = (yWords ? Math.max(4, Math.min(yWords.size, MOST_BANDS)) * 25 + 60 : 360) + tall;
  const [across, up] = [width - box.left - box.right, height - box.top - box.bottom];
  const axis = (name, length, isLog) =>
    data.texts[name] ? bands(name, view, length) : scale(name, view, length, isLog);
  const x = axis(state.x, across, state.xscale === "log");
  const y = axis(state.y, up, state.yscale === "log");
  const groups = new Map();
  const groupOf = (word) => data.texts[state.colour].words.indexOf(word);
  dots = [];
  let [missing, off] = [0, 0];
  for (const row of view) {
    const [right, above] = [x.at(row), y.at(row)];
    if (right === null || above === null) { missing += 1; continue; }
    off += x.isOff?.(row) || y.isOff?.(row) ? 1 : 0;
    const word = values[state.colour](row);
    if (!groups.has(word)) groups.set(word, { place: groupOf(word), dots: [] });
    const dot = {
      row, x: tenth(box.left + right),
      y: tenth(y.isBands ? box.top + above : box.top + up - above),
    };
    groups.get(word).dots.push(dot);
    dots.push(dot);
  }
  dots.sort((one, other) => one.x - other.x || one.y - other.y);
  const drawing = svgOf("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  drawAxes(drawing, box, across, up, x, y, letters);
  const lines = FREED[state.x] && !y.isBands ? drawLines(drawing, groups) : 0;
  for (const { place, dots: marks } of groups.values()) {
    const mark = MARKS[place % MARKS.length];
    drawing.append(svgOf("path", {
      class: `series-${place % COLOURS} dots`, d: marks.map((each) => mark(each.x, each.y)).join(""),
    }));
  }
  drawing.append(svgOf("path", { class: "pointed", d: "" }));
  picture.replaceChildren(drawing);
  const title = y.isBands
    ? `${NAMES[state.x]}, by ${NAMES[state.y].toLowerCase()}`
    : `${NAMES[state.y]} against ${NAMES[state.x][0].toLowerCase()}${NAMES[state.x].slice(1)}`;
  selects.xscale.disabled = Boolean(x.isBands);
  selects.yscale.disabled = Boolean(y.isBands);
  picture.setAttribute("aria-label", `${title}, ${whole(dots.length)} dots`);
  $("#picture-title").textContent = title;
  describe(missing, off, x, y, lines);
  showKeys(groups);
  point(-1);
};

const drawAxes = (drawing, box, across, up, x, y, letters) => {
  const [bottom, right] = [box.top + up, box.left + across];
  for (const { at, text } of y.ticks) {
    const level = tenth(y.isBands ? box.top + at : bottom - at);
    if (!y.isBands) drawing.append(svgOf("path", { class: "grid", d: `M${box.left} ${level}H${right}` }));
    drawing.append(svgOf("text", { x: box.left - 8, y: level + 4, "text-anchor": "end" }, y.isBands ? clipped(text, letters) : text));
  }
  let free = -Infinity;
  for (const { at, text } of x.ticks) {
    const place = tenth(box.left + at);
    if (!x.isBands) drawing.append(svgOf("path", { class: "grid", d: `M${place} ${box.top}V${bottom}` }));
    if (x.isBands) {
      const turned = `rotate(-35 ${place} ${bottom + 14})`;
      drawing.append(svgOf("text", { x: place, y: bottom + 14, "text-anchor": "end", transform: turned }, clipped(text, 16)));
    } else if (place - text.length * 3.4 > free) {
      drawing.append(svgOf("text", { x: place, y: bottom + 18, "text-anchor": "middle" }, text));
      free = place + text.length * 3.4 + 4;
    }
  }
  if (state.x === "speed" && !x.isBands) {
    const same = x.ticks.find(({ text }) => text === "1x");
    if (same) drawing.append(svgOf("path", { class: "same", d: `M${tenth(box.left + same.at)} ${box.top}V${bottom}` }));
  }
  drawing.append(svgOf("text", { class: "axis", x: box.left + across / 2, y: bottom + box.bottom - 8, "text-anchor": "middle" }, NAMES[state.x]));
};

const drawLines = (drawing, groups) => {
  const paths = [];
  for (const { place, dots: marks } of groups.values()) {
    const lines = new Map();
    for (const dot of marks) {
      const line = lineOf(dot.row);
      if (!lines.has(line)) lines.set(line, []);
      lines.get(line).push(dot);
    }
    for (const line of lines.values()) {
      if (line.length < 2) continue;
      line.sort((one, other) => one.x - other.x);
      paths.push([place, `M${line.map((dot) => `${dot.x} ${dot.y}`).join("L")}`]);
    }
    if (paths.length > MOST_LINES) return 0;
  }
  for (const [place, d] of paths) drawing.append(svgOf("path", { class: `series-${place % COLOURS} line`, d }));
  return paths.length;
};

const describe = (missing, off, x, y, lines) => {
  const bandsLeft = (x.left ?? 0) + (y.left ?? 0);
  const notes = [`${whole(dots.length)} of ${whole(view.length)} drawn`];
  if (bandsLeft) notes.push(`only the first ${MOST_BANDS} names of an axis are drawn: filter to see others`);
  else if (missing) notes.push(`${whole(missing)} have no such number`);
  if (off) notes.push(`${whole(off)} at the edge: zero or not finite`);
  if (lines) notes.push("lines join cases that differ in nothing else");
  $("#picture-notes").textContent = `${notes.join("; ")}.`;
};

const showKeys = (groups) => {
  const most = 24;  // three lines of names on a screen
  const keys = [...groups].sort(([, one], [, other]) => one.place - other.place);
  $("#picture-keys").replaceChildren(...keys.slice(0, most).map(([word, { place, dots: marks }]) => {
    const button = make("button", { type: "button", "aria-pressed": "false", "data-series": `series-${place % COLOURS}` });
    const sample = svgOf("svg", { viewBox: "-6 -6 12 12", "aria-hidden": "true", class: "sample" });
    sample.append(svgOf("path", { class: `series-${place % COLOURS} dots`, d: MARKS[place % MARKS.length](0, 0) }));
    button.append(sample, make("bdi", { text: clipped(shownWord(state.colour, word), 60) }), ` ${whole(marks.length)}`);
    button.onclick = () => highlight(button, place);
    return make("li", {}, button);
  }), ...(keys.length > most ? [make("li", { text: `and ${whole(keys.length - most)} more` })] : []));
  picture.classList.remove("focused");
};
const highlight = (button, place) => {
  const isOn = button.getAttribute("aria-pressed") !== "true";
  for (const each of $("#picture-keys").querySelectorAll("button")) each.setAttribute("aria-pressed", String(isOn && each === button));
  picture.classList.toggle("focused", isOn);
  const word = [...data.texts[state.colour].words][place];
  const lines = picture.querySelectorAll(`.series-${place % COLOURS}`);
  for (const each of picture.querySelectorAll(".shown")) each.classList.remove("shown");
  if (isOn && word !== undefined) for (const each of lines) each.classList.add("shown");
};

// ---- one dot: by pointer, or by arrow keys ------------------------------------------------------
const point = (place) => {
  pointed = place;
  const dot = dots[place];
  const ring = picture.querySelector(".pointed");
  ring?.setAttribute("d", dot ? `M${dot.x - 7} ${dot.y}a7 7 0 1 0 14 0a7 7 0 1 0-14 0z` : "");
  const hint = "Point at a dot, or move through the dots with the arrow keys, to see its numbers and its command.";
  if (!dot) {
    $("#pointed").textContent = hint;
    $("#pointed-case").replaceChildren();
    return;
  }
  const text = (name) => NUMERIC.has(name)
    ? `${NAMES[name]} ${NUMERIC.get(name)(numberOf(name, dot.row))}` : shownWord(name, values[name](dot.row));
  const facts = [values.implementation(dot.row), inWords(values.status(dot.row)), text(state.x), text(state.y)];
  $("#pointed").textContent = [...new Set(facts)].join(" · ");
  $("#pointed-case").replaceChildren(details(dot.row));
};
picture.onpointermove = (event) => {
  const area = picture.getBoundingClientRect();
  const [x, y] = [event.clientX - area.left + picture.scrollLeft, event.clientY - area.top];
  let [nearest, least] = [-1, 24 ** 2];
  dots.forEach((dot, place) => {
    const distance = (dot.x - x) ** 2 + (dot.y - y) ** 2;
    if (distance < least) [nearest, least] = [place, distance];
  });
  if (nearest >= 0 && nearest !== pointed) point(nearest);
};
picture.onkeydown = (event) => {
  const last = dots.length - 1;
  const goal = {
    ArrowRight: Math.min(pointed + 1, last), ArrowLeft: Math.max(pointed - 1, 0),
    ArrowUp: Math.max(pointed - 1, 0), ArrowDown: Math.min(pointed + 1, last),
    Home: 0, End: last, Escape: -1,
  }[event.key];
  if (goal === undefined) return;
  event.preventDefault();
  point(goal);
};
let drawnWidth = picture.clientWidth;
new ResizeObserver(() => {
  if (picture.clientWidth === drawnWidth) return;
  drawnWidth = picture.clientWidth;
  showPicture();
}).observe(picture);

// ---- links to views that answer a common question ------------------------------------------------
{
  const most = (name) => [...counts[name]].sort(([, one], [, other]) => other - one)[0][0];
  const only = (name, word) => selects[name] && counts[name].has(word) ? { [name]: word } : {};
  const forward = { ...only("direction", "forward"), ...only("dtype", most("dtype")), colour: "implementation" };
  const links = [
    ["Speed of every implementation", { x: "speed", y: "implementation", colour: "direction" }],
    ["Latency against size", { x: "elements", y: "latency_s", ...forward }],
    ["Error against condition", { x: "condition", y: "error_ulp", ...forward }],
    ["Error against speed", { x: "speed", y: "error_ulp", ...forward }],
    ["Memory against size", { x: "elements", y: "peak_bytes", ...forward }],
  ].filter(([, { x, y }]) => has(x) && (has(y) || y === "implementation"));
  const place = $("#views");
  place.hidden = !links.length;
  place.append(...links.flatMap(([words, wanted], each) => {
    const kept = Object.entries(wanted).filter(([name, value]) => name in FIRST && value !== FIRST[name]);
    // an address without a word would be that of the section
    const query = new URLSearchParams(kept.length ? kept : [["x", wanted.x]]);
    return [each ? " · " : "", make("a", { href: ADDRESS + query, text: words })];
  }));
}
