// The page: its head, its sections, and which run is shown where there are several.


/** What plays the episodes of a run, made once and put where it is wanted. */
function makePlayer(run) {
  if (!run.episodes) return null;
  const host = el("div", { class: "player-host" });
  const player = createPlayer(host, run.episodes);
  const show = (field, value) => {
    const index = player.find(field, value);
    if (index < 0) return;
    player.show(index);
    player.play();
    if (host.getBoundingClientRect().top > innerHeight) host.scrollIntoView({ behavior: "smooth", block: "nearest" });
  };
  return { host, show, episodes: run.episodes.episodes, destroy: () => player.destroy() };
}

function runSections(run) {
  const player = makePlayer(run);
  // What one came to see stands first.
  const sections = [];
  if (run.repertoire) sections.push(repertoireSection(run, player));
  if (run.skills) sections.push(skillsSection(run, player));
  if (!run.repertoire && !run.skills) sections.push(episodeSection(run, player));
  sections.push(learningSection(run));
  if (run.population) sections.push(populationSection(run));
  sections.push(systemSection(run));
  return { sections: sections.filter(Boolean), destroy: () => player && player.destroy() };
}

function episodeSection(run, player) {
  if (!player) return null;
  const several = player.episodes.length > 1;
  const note = several ? "The members, best first; the arrows turn to the next." : null;
  return section("episode", "Episode", frame({ title: run.episodes.episodes[0].label, name: "episode", wide: true, note }, el("div", { class: "stage" }, player.host)));
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
  const copy = el("button", { type: "button", class: "csv", onclick: () => navigator.clipboard?.writeText(run.command) }, "copy");
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
  const sign = el("span", { class: "live" }, "live");
  const ask = async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== version) location.reload();
      sign.classList.remove("lost");
    } catch {
      sign.classList.add("lost");
    }
  };
  if (every) setTimeout(() => location.reload(), 1000 * every);
  else setInterval(ask, 5000);
  return sign;
}

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
  const data = unpack(JSON.parse(document.getElementById("data").textContent));
  const page = document.getElementById("page");
  const bar = el("div", { class: "bar" }, el("span", { class: "brand" }, "rookery"), data.live ? followRun(data.live) : null, themeButton());
  const body = el("div", {});
  page.append(bar);
  if (data.comparison) page.append(comparisonSection(data.comparison));
  let shown = null;
  const show = (index) => {
    keep("run", index);
    if (shown) shown.destroy();
    shown = runSections(data.runs[index]);
    body.replaceChildren(runHead(data.runs[index]), contents(shown.sections), ...shown.sections);
  };
  if (data.runs.length > 1) page.append(runChoice(data.runs, show));
  page.append(body, el("footer", {}, `Written ${data.written} by Rookery. This page is one file: keep it, send it, open it anywhere.`));
  show(Math.min(Number(keep("run")) || 0, data.runs.length - 1));
  page.dataset.ready = "true";
}

function runChoice(runs, show) {
  const chosen = Number(keep("run")) || 0;
  const options = runs.map((run, index) => el("option", { value: index, selected: index === chosen }, `${run.name}: ${run.kind} on ${run.env}`));
  return el("label", { class: "run-choice" }, "Run ", el("select", { "aria-label": "Run", onchange: (event) => show(Number(event.target.value)) }, ...options));
}

begin();
