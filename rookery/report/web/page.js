// The page: its head, its sections, and which run is shown where there are several.


/** What plays the episodes of a run, made once and put where it is wanted. */
function makePlayer(run) {
  if (!run.episodes) return null;
  const host = el("div", { class: "player-host" });
  const hearers = [];
  // The first episode is announced while the player is made.
  host.addEventListener("episodechange", ({ detail }) => hearers.forEach((hear) => hear(detail.episode)));
  const player = createPlayer(host, run.episodes);
  const listen = (hear) => {
    hearers.push(hear);
    hear(run.episodes.episodes[player.index]);
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
  // What one came to see stands first.
  const sections = [];
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
  const title = several ? "The members, best first" : run.episodes.episodes[0].label;
  return section("episode", "Episode", playerFrame(run, player, title));
}

/** The player in its frame, which says of when its episodes are. */
function playerFrame(run, player, title) {
  const { generation } = run.episodes;
  const last = run.metrics.generation.data.at(-1) + 1;
  const later = last > generation ? " The run has gone on since: rookery report plays what it has learned by now." : "";
  const csv = () => episodeColumns(run.episodes);
  return frame({ title, name: "episodes", wide: !run.repertoire && !run.skills, csv, note: `As they acted after generation ${generation}.${later}` }, el("div", { class: "stage" }, player.host));
}

/** Where every body was, a row per frame and body; of a film the returns alone. */
function episodeColumns({ arrays, episodes }) {
  if (!arrays.position) return { episode: episodes.map(({ label }) => label), steps: episodes.map((one) => one.steps), ended: episodes.map((one) => one.ended) };
  const { shape, data } = arrays.position;
  const [count, frames, bodies, size] = shape;
  const told = { episode: [], step: [], body: [], x: [], y: [], ...(size > 2 ? { z: [] } : {}) };
  for (let n = 0; n < count; n++) {
    for (let f = 0; f < arrays.frames.data[n]; f++) {
      for (let b = 0; b < bodies; b++) {
        told.episode.push(episodes[n].label);
        told.step.push(arrays.step.data[n * frames + f]);
        told.body.push(b);
        ["x", "y", "z"].slice(0, size).forEach((name, axis) => told[name].push(data[((n * frames + f) * bodies + b) * size + axis]));
      }
    }
  }
  return told;
}

/** What to do where nothing was rolled out. */
function noEpisodes(run) {
  return el("p", { class: "note" }, `No episodes to play yet: \u201crookery report ${run.name}\u201d records them, where the world can be drawn.`);
}

function runHead(run) {
  const facts = run.facts.filter(([label]) => !["processor", "versions", "begun"].includes(label));
  const chips = facts.map(([label, value]) => el("div", { class: "fact" }, el("dt", {}, label), el("dd", {}, value)));
  const title = el("h1", {}, run.kind, el("span", { class: "on" }, " on "), run.env || "an unnamed task");
  const told = [title, el("p", { class: "result" }, run.result), el("p", { class: "state" }, `${run.name}: ${run.state.text}`)];
  return el("header", { class: "head" }, ...told, el("dl", { class: "facts" }, ...chips), howItRan(run));
}

/** Command, settings and search space: there for who opens it. */
function howItRan(run) {
  const rows = run.settings.map(({ name, value, default: usual }) => [name, value, usual || "\u2013"]);
  const toClipboard = async () => {
    await navigator.clipboard.writeText(run.command);
    copy.textContent = "copied";
  };
  const copy = navigator.clipboard ? el("button", { type: "button", class: "csv", onclick: toClipboard }, "copy") : "";
  const parts = [run.command ? el("div", { class: "command" }, el("code", {}, run.command), copy) : null];
  if (rows.length) parts.push(table([{ label: "setting" }, { label: "value" }, { label: "default" }], rows, "What differs from the defaults"));
  if (run.space.length) parts.push(table([{ label: "hyper-parameter" }, { label: "" }], run.space, "Search space"));
  return el("details", { class: "how" }, el("summary", {}, "How it was run"), el("div", { class: "how-body" }, ...parts.filter(Boolean)));
}

function contents(sections) {
  return el("nav", { class: "contents", "aria-label": "Sections" }, ...sections.map((part) => el("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)));
}

/** Turns between light and dark, which begins as the system has it. */
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

/** Loads the page again when there is more to see: as the server says, or after a while. The browser keeps the place. */
function followRun({ version, every }) {
  const reload = () => location.reload();
  const sign = el("button", { type: "button", class: "live", title: "Load the page again", onclick: reload }, "live");
  let touched = -Infinity;
  for (const kind of ["pointerdown", "keydown", "wheel", "input"]) addEventListener(kind, () => (touched = performance.now()), { passive: true });
  // Whoever is at something decides when.
  const renew = () => (performance.now() - touched > FOLLOWING.calm ? reload() : (sign.textContent = "live: there is more"));
  const ask = async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      sign.classList.remove("lost");
      if (answer.ok && (await answer.text()) !== version) renew();
    } catch {
      sign.classList.add("lost");
    }
  };
  setInterval(every ? renew : ask, every ? 1000 * every : FOLLOWING.every);
  return sign;
}

const FOLLOWING = { every: 5000, calm: 15_000 }; // ms between questions; ms since the page was touched

/** What should outlast a reload, where the browser lets a page keep anything. */
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
    const [made, own] = together(() => runSections(unpack(data.runs[index])));
    shown = { ...made, destroy: () => (own.abort(), made.destroy()) };
    body.replaceChildren(runHead(data.runs[index]), contents(shown.sections), ...shown.sections);
  };
  const first = Math.min(Number(keep("run")) || 0, data.runs.length - 1);
  if (data.runs.length > 1) page.append(runChoice(data.runs, first, show));
  page.append(body, el("footer", {}, `Written ${data.written} by Rookery. This page is one file: keep it, send it, open it anywhere.`));
  show(first);
  page.dataset.ready = "true";
}

function runChoice(runs, chosen, show) {
  const options = runs.map((run, index) => el("option", { value: index, selected: index === chosen }, `${run.name}: ${run.kind} on ${run.env}`));
  return el("label", { class: "run-choice" }, "Run ", el("select", { "aria-label": "Run", onchange: (event) => show(Number(event.target.value)) }, ...options));
}

begin();
