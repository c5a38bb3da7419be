// The page: head, sections, and the choice of the shown run.


/** The player of a run's episodes: its element, and functions to show and observe episodes. */
function makePlayer(run) {
  if (!run.episodes) return null;
  const host = el("div", { class: "player-host" });
  const listeners = [];
  // The player sends the first event during its construction.
  host.addEventListener("episodechange", ({ detail }) => listeners.forEach((act) => act(detail.episode)));
  const player = createPlayer(host, run.episodes);
  const listen = (act) => {
    listeners.push(act);
    act(run.episodes.episodes[player.index]);
  };
  const show = (field, value) => {
    const index = player.find(field, value);
    if (index < 0) return;
    player.show(index);
    player.play();
    if (host.getBoundingClientRect().top > innerHeight) host.scrollIntoView({ behavior: "smooth", block: "nearest" });
  };
  return { host, show, listen, episodes: run.episodes.episodes, destroy: () => player.destroy() };
}

function runSections(run) {
  const player = makePlayer(run);
  // The method's main result comes first.
  const sections = [];
  if (run.islands) sections.push(islandsSection(run));
  if (run.repertoire) sections.push(repertoireSection(run, player));
  if (run.skills) sections.push(skillsSection(run, player));
  if (!run.repertoire && !run.skills && (player || run.env)) sections.push(episodeSection(run, player));
  sections.push(learningSection(run));
  if (run.populations.length) sections.push(populationSection(run));
  sections.push(systemSection(run));
  return { sections: sections.filter(Boolean), destroy: () => player && player.destroy() };
}

function episodeSection(run, player) {
  if (!player) return section("episode", "Episode", noEpisodes(run));
  const several = player.episodes.length > 1;
  const title = several ? "The best members, without copies" : capitalised(run.episodes.episodes[0].label);
  return section("episode", "Episode", playerFrame(run, player, title));
}

function capitalised(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** The player in a frame, with a note on the generation of its episodes. */
function playerFrame(run, player, title) {
  const { generation } = run.episodes;
  const last = run.metrics.generation.data.at(-1) + 1;
  const later = last > generation ? " The run has continued since: rookery report records the episodes of its latest checkpoint." : "";
  const csv = () => episodeColumns(run.episodes);
  return frame({ title, name: "episodes", wide: !run.repertoire && !run.skills, csv, note: `Episodes of the checkpoint after generation ${generation}.${later}` }, el("div", { class: "stage" }, player.host));
}

/** Positions, a row per frame and body; for a film only the length and the end of its episode. */
function episodeColumns({ arrays, episodes }) {
  if (!arrays.position) return { episode: episodes.map(({ label }) => label), steps: episodes.map((one) => one.steps), ended: episodes.map((one) => one.ended) };
  const { shape, data } = arrays.position;
  const [count, frames, bodies, size] = shape;
  const columns = { episode: [], step: [], body: [], x: [], y: [], ...(size > 2 ? { z: [] } : {}) };
  for (let n = 0; n < count; n++) {
    for (let f = 0; f < arrays.frames.data[n]; f++) {
      for (let b = 0; b < bodies; b++) {
        columns.episode.push(episodes[n].label);
        columns.step.push(arrays.step.data[n * frames + f]);
        columns.body.push(b);
        ["x", "y", "z"].slice(0, size).forEach((name, axis) => columns[name].push(data[((n * frames + f) * bodies + b) * size + axis]));
      }
    }
  }
  return columns;
}

/** Note for a run without recorded episodes. */
function noEpisodes(run) {
  return el("p", { class: "note" }, "No episodes are recorded. \u201crookery report\u201d with the directory of this run records some, unless its task is a function or cannot be rendered, or it was started from Python: then rookery.load(run, program=program).report() does.");
}

function runHead(run) {
  const facts = run.facts.filter(([label]) => !["processor", "versions", "started"].includes(label));
  const chips = facts.map(([label, value]) => el("div", { class: "fact" }, el("dt", {}, label), el("dd", {}, value)));
  const title = el("h1", {}, run.kind, el("span", { class: "on" }, " on "), run.env || "an unnamed task");
  const parts = [title, el("p", { class: "result" }, run.result), el("p", { class: "state" }, `${run.name}: ${run.state.text}`)];
  return el("header", { class: "head" }, ...parts, el("dl", { class: "facts" }, ...chips), howItRan(run));
}

/** Command, settings and search space, collapsed at first. */
function howItRan(run) {
  const rows = run.settings.map(({ name, value, default: usual }) => [name, value, usual || "\u2013"]);
  const toClipboard = async () => {
    await navigator.clipboard.writeText(run.command);
    copy.textContent = "copied";
  };
  const copy = navigator.clipboard ? el("button", { type: "button", class: "csv", onclick: toClipboard }, "copy") : "";
  const parts = [run.command ? el("div", { class: "command" }, el("code", {}, run.command), copy) : null];
  if (rows.length) parts.push(table([{ label: "setting" }, { label: "value" }, { label: "default" }], rows, run.settings_title));
  if (run.space.length) parts.push(table([{ label: "hyper-parameter" }, { label: "" }], run.space, "Search space"));
  return el("details", { class: "how" }, el("summary", {}, "How it was run"), el("div", { class: "how-body" }, ...parts.filter(Boolean)));
}

function contents(sections) {
  return el("nav", { class: "contents", "aria-label": "Sections" }, ...sections.map((part) => el("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)));
}

/** Switches between light and dark; the system's setting is the default. */
function themeButton() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  if (keep("theme")) root.dataset.theme = keep("theme");
  const turn = () => {
    const wanted = dark() ? "light" : "dark";
    root.dataset.theme = wanted;
    keep("theme", wanted);
    window.dispatchEvent(new Event("themechange"));
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.dispatchEvent(new Event("themechange")));
  return el("button", { type: "button", class: "theme", "aria-label": "Light or dark", title: "Light or dark", onclick: turn }, "\u25d0");
}

/** Reloads the page when the server reports a new version, or at an interval. The browser keeps the scroll position. */
function followRun({ version, every }) {
  const reload = () => location.reload();
  const sign = el("button", { type: "button", class: "live", title: "Reload the page", onclick: reload }, "live");
  let touched = -Infinity;
  for (const kind of ["pointerdown", "keydown", "wheel", "input"]) addEventListener(kind, () => (touched = performance.now()), { passive: true });
  // No automatic reload while the user interacts with the page.
  const renew = () => (performance.now() - touched > FOLLOWING.calm ? reload() : (sign.textContent = "live: update available"));
  const checkVersion = async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      sign.classList.remove("lost");
      if (answer.ok && (await answer.text()) !== version) renew();
    } catch {
      sign.classList.add("lost");
    }
  };
  setInterval(every ? renew : checkVersion, every ? 1000 * every : FOLLOWING.every);
  return sign;
}

const FOLLOWING = { every: 5000, calm: 15_000 }; // ms between requests; ms without interaction before a reload

/** Stores a value across reloads if the browser permits it, and returns the stored value. */
function keep(name, value) {
  try {
    if (value !== undefined) sessionStorage.setItem(name, value);
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

function begin() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  const bar = el("div", { class: "bar" }, el("span", { class: "brand" }, "rookery"), data.live && !data.runs.every(({ state }) => state.over) ? followRun(data.live) : null, themeButton());
  const body = el("div", {});
  page.append(bar);
  if (data.comparison) page.append(comparisonSection(unpack(data.comparison)));
  let shown = null;
  const show = (index) => {
    keep("run", index);
    if (shown) shown.destroy();
    const [made, controller] = inScope(() => runSections(unpack(data.runs[index])));
    shown = { ...made, destroy: () => (controller.abort(), made.destroy()) };
    body.replaceChildren(runHead(data.runs[index]), contents(shown.sections), ...shown.sections);
  };
  const first = Math.min(Number(keep("run")) || 0, data.runs.length - 1);
  if (data.runs.length > 1) page.append(runChoice(data.runs, first, show));
  page.append(body, el("footer", {}, `Written ${data.written} by Rookery. This page is a single self-contained file.`));
  show(first);
  page.dataset.ready = "true";
}

function runChoice(runs, chosen, show) {
  const options = runs.map((run, index) => el("option", { value: index, selected: index === chosen }, `${run.name}: ${run.kind} on ${run.env}`));
  return el("label", { class: "run-choice" }, "Run ", el("select", { "aria-label": "Run", onchange: (event) => show(Number(event.target.value)) }, ...options));
}

begin();
