// Small parts of the page. Whatever comes from a run goes through textContent, never through innerHTML.

// What is drawn lives as long as the run that it shows: another run's pictures are not redrawn behind it.
let life = new AbortController();

/** Makes parts of the page that end together, by the controller that is given back. */
function together(make) {
  const [before, own] = [life, new AbortController()];
  life = own;
  const made = make();
  life = before;
  return [made, own];
}

/** Calls `act` whenever the page turns light or dark, while `signal` lasts. */
function onTheme(act, signal = life.signal) {
  window.addEventListener("themechange", act, { signal });
}

/** An element with attributes (functions listen) and children; a child that is null is left out. */
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A section of the page with its heading, which the contents at the top link to. */
function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...children);
}

/** A table: columns are {label, numeric}, rows are arrays of texts or elements. */
function table(columns, rows, caption = null) {
  const head = el("tr", {}, ...columns.map(({ label, numeric }) => el("th", { scope: "col", class: numeric ? "numeric" : null }, label)));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell, i) => el("td", { class: columns[i].numeric ? "numeric" : null }, cell))));
  const parts = [caption && el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...body)];
  return el("div", { class: "scroll" }, el("table", {}, ...parts.filter(Boolean)));
}

/** One of several to be chosen by a click: options are [value, label]. */
function choice(label, options, chosen, act) {
  const buttons = options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": String(value === chosen), "data-value": value, onclick: () => choose(value) }, text),
  );
  const choose = (value) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
    act(value);
  };
  return el("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

/** Columns (name -> array) as a CSV file; NaN is an empty field. */
function csvText(columns) {
  const names = Object.keys(columns);
  const length = Math.max(0, ...names.map((name) => columns[name].length));
  const lines = [names.map(csvField).join(",")];
  for (let row = 0; row < length; row++) lines.push(names.map((name) => csvField(columns[name][row])).join(","));
  return `${lines.join("\n")}\n`;
}

function csvField(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const text = String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A button that saves what a picture shows; `columns` is asked for when it is pressed. */
function csvButton(name, columns) {
  const save = () => {
    const link = el("a", { href: URL.createObjectURL(new Blob([csvText(columns())], { type: "text/csv" })), download: `${name}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  return el("button", { type: "button", class: "csv", title: `Save the numbers of this picture as ${name}.csv`, onclick: save }, "CSV");
}

/** A frame around a picture: title, a note below, and its numbers as a file. */
function frame({ title, note, csv, name, controls = [], wide = false }, body) {
  const tools = el("div", { class: "tools" }, ...controls, csv ? csvButton(name, csv) : null);
  const caption = el("figcaption", {}, el("h3", {}, title), tools);
  return el("figure", { class: wide ? "wide" : null, "data-name": name }, caption, body, note ? el("p", { class: "note" }, note) : null);
}
