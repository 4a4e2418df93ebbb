
// ---- the table of the cases -------------------------------------------------------------------
const headings = make("tr");
for (const [name, heading, write] of COLUMNS) {
  const button = make("button", { type: "button", text: heading });
  button.onclick = () => {
    state.sort = state.sort === name ? `-${name}` : name;
    state.page = "1";
    show();
  };
  headings.append(make("th", { scope: "col", "data-column": name, class: look(name, write ? "n" : "") }, button));
}
$("#grid thead").append(headings);

const pill = (status) => make("span", { class: `pill ${status}`, text: inWords(status) });

/** Everything about a case in words, with the command that measures it again. */
const details = (row) => {
  const list = make("dl");
  const facts = [
    ["Case", values.id(row)], ["Command", values.command(row)],
    ["Reason", values.reason(row)], ["Warnings", values.warnings(row)],
  ];
  for (const [name, text] of facts) {
    if (!text) continue;
    const isCode = name === "Case" || name === "Command";
    list.append(make("dt", { text: name }), make("dd", {}, isCode ? make("code", { text }) : text));
  }
  return list;
};
const unfold = (row, button) => {
  const line = button.closest("tr");
  const isOpen = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) line.nextSibling.remove();
  else line.after(make("tr", { class: "details" }, make("td", { colspan: COLUMNS.length }, details(row))));
};
const drawn = (row) => make("tr", {}, ...COLUMNS.map(([name, , write], place) => {
  const value = values[name](row);
  if (name === "status") return make("td", { title: values.reason(row) }, pill(value));
  if (place === 0) {
    const button = make("button", { type: "button", "aria-expanded": "false" }, make("bdi", { text: value }));
    button.onclick = () => unfold(row, button);
    return make("th", { scope: "row" }, button);
  }
  if (write) return make("td", { class: look(name, "n"), text: write(value, row) });
  const clipped = CLIPPED.has(name);
  return make("td", {
    class: look(name, clipped ? "clip" : ""), title: clipped ? value : "", text: value,
  });
}));

const showTable = () => {
  for (const heading of headings.children) {
    const name = heading.dataset.column;
    const isOn = state.sort.replace("-", "") === name;
    const isDown = state.sort.startsWith("-");
    if (isOn) heading.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
    heading.firstChild.textContent = headingOf(name) + (isOn ? (isDown ? " ▼" : " ▲") : "");
  }
  const pages = Math.max(1, Math.ceil(view.length / PAGE));
  const page = Math.min(Math.max(Math.trunc(Number(state.page)) || 1, 1), pages);
  state.page = String(page);
  $("#grid tbody").replaceChildren(...view.slice((page - 1) * PAGE, page * PAGE).map(drawn));
  const noun = data.count === 1 ? "case" : "cases";
  $("#found").textContent = view.length
    ? `${whole(view.length)} of ${whole(data.count)} ${noun}`
    : "No case matches; loosen the filter or press Reset";
  $("#where").textContent = `page ${page} of ${pages}`;
  $("#previous").disabled = page === 1;
  $("#next").disabled = page === pages;
  $("#grid-scroll").scrollTop = 0;
};

const show = () => {
  view = sorted(filtered());
  showTable();
  showPicture();
  writeAddress();
};
const restore = () => {
  readAddress();
  $("#query").value = state.q;
  for (const [name, select] of Object.entries(selects)) {
    select.value = state[name];
    if (select.selectedIndex < 0) select.value = state[name] = FIRST[name];  // of another page
  }
  show();
};

let waiting;
$("#query").oninput = () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => { state.q = $("#query").value; state.page = "1"; show(); }, 80);
};
const turn = (by) => () => { state.page = String(Number(state.page) + by); show(); };
$("#previous").onclick = turn(-1);
$("#next").onclick = turn(1);
$("#reset").onclick = () => {
  const kept = Object.fromEntries(Object.entries(state).filter(([name]) => AXES.includes(name)));
  state = { ...FIRST, ...kept };
  $("#query").value = "";
  for (const [name, select] of Object.entries(selects)) select.value = state[name];
  show();
};

$("#csv").onclick = () => {
  const rest = Object.keys(values).filter((name) => !/^(id|id_rest|command_rest)$/.test(name));
  const names = ["id", ...rest];
  const cell = (value) => {
    if (value === null) return "";
    let word = value === Infinity ? "inf" : value === -Infinity ? "-inf" : String(value);
    // a spreadsheet takes such a name for a formula
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(word)) word = `'${word}`;
    return /[",\r\n]/.test(word) ? `"${word.replaceAll('"', '""')}"` : word;
  };
  const written = (name, row) =>
    name === "shape" ? plainShape(values.shape(row)) : values[name](row);
  const lines = view.map((row) => names.map((name) => cell(written(name, row))).join(","));
  const file = new Blob([[names.join(","), ...lines].join("\n"), "\n"], { type: "text/csv" });
  const link = make("a", { download: "cases.csv", href: URL.createObjectURL(file) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

// ---- links to a view: those of the page, and those that a reader saved ------------------------
const follow = () => {
  if (!shownInAddress()) return;
  restore();
  $("#all_cases").scrollIntoView();
};
addEventListener("hashchange", follow);
restore();
follow();
