// Basic elements of the page. Texts of a run are always set by textContent, never by innerHTML.

// Charts belong to the shown run: aborting this controller removes their listeners when another run is shown.
let scopeController = new AbortController();

/** Runs `make` with a new controller for the listeners of its charts; returns the result and the controller. */
function inScope(make) {
  const [previous, controller] = [scopeController, new AbortController()];
  scopeController = controller;
  const made = make();
  scopeController = previous;
  return [made, controller];
}

/** Calls `act` whenever the theme changes, until `signal` is aborted. */
function onTheme(act, signal = scopeController.signal) {
  window.addEventListener("themechange", act, { signal });
}

/** An element with attributes (functions listen) and children; null children are omitted. */
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

/** A section of the page with its heading, the target of a link in the table of contents. */
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

/** A group of buttons of which one is selected; options are [value, label]. */
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

/** A button that saves the data of a figure; `columns` is called when it is pressed. */
function csvButton(name, columns) {
  const save = () => {
    const link = el("a", { href: URL.createObjectURL(new Blob([csvText(columns())], { type: "text/csv" })), download: `${name}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  return el("button", { type: "button", class: "csv", title: `Save the data of this figure as ${name}.csv`, onclick: save }, "CSV");
}

/** A figure with a title, a note below, and a button that saves its data. */
function frame({ title, note, csv, name, controls = [], wide = false }, body) {
  const tools = el("div", { class: "tools" }, ...controls, csv ? csvButton(name, csv) : null);
  const caption = el("figcaption", {}, el("h3", {}, title), tools);
  return el("figure", { class: wide ? "wide" : null, "data-name": name }, caption, body, note ? el("p", { class: "note" }, note) : null);
}
