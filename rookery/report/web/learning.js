// Learning curves over environment steps or wall-clock time; and all other logged metrics.

function learningSection(run) {
  const state = { by: "env_steps" };
  const figures = [fitnessChart(run, state), ...run.learning.panels.map((panel) => metricChart(run, state, panel))];
  const toggle = choice("Horizontal axis", [["env_steps", "environment steps"], ["seconds", "wall-clock time"]], state.by, (by) => {
    state.by = by;
    for (const figure of figures) figure.redraw();
  });
  const parts = [toggle, el("div", { class: "grid" }, ...figures, explorer(run, state))];
  return section("learning", "Learning", ...parts);
}

function along(run, state, colours) {
  const byTime = state.by === "seconds";
  const several = run.populations.some(({ fitness }) => fitness.shape[1] > 1);
  const unit = run.learning.seeds ? " of each seed" : several ? " of the population" : "";
  const name = byTime ? "wall-clock time without compilation" : `environment steps${unit}`;
  return { xs: run.learning[state.by].data, base: baseAxis(colours, name, { format: byTime ? clock : steps, scale: false, min: 0, max: "dataMax", minInterval: byTime ? 0 : 1 }), head: (value, index) => `${byTime ? clock(value) : `${steps(value)} steps`}, generation ${index + 1}` };
}

function fitnessChart(run, state) {
  const { learning } = run;
  const teams = Object.keys(learning.agents).length > 1;
  const option = (colours) => {
    const { xs, base, head: whole } = along(run, state, colours);
    const points = !teams && learning.seeds ? learning.seeds.points : null;
    const head = points ? (value, index) => whole(value, points[index]) : whole;
    const series = teams ? agentLines(run, xs, colours) : points ? seedLines(learning.seeds, xs, colours) : fitnessLines(learning, xs, colours);
    return { xAxis: base, yAxis: sideAxis(colours, teams ? "mean return" : learning.label), series, legend: legend(colours, series.filter((s) => s.type === "line").map((s) => s.name)), tooltip: { ...basics(colours).tooltip, formatter: axisTooltip(head) }, dataZoom: zoom(), grid: { ...basics(colours).grid, bottom: 30 } };
  };
  const title = teams ? "Return of each agent" : "Fitness";
  const ofSeeds = learning.seeds && !teams ? `Interquartile mean of ${learning.seeds.count} independent seeds and its 95 % bootstrap interval.` : null;
  const note = learning.median ? "The band is the interquartile range of the population." : ofSeeds;
  return chart({ title, note, name: "learning", wide: true, height: (width) => (width < SMALL_SCREEN ? 260 : 340), option, csv: () => learningColumns(run) });
}

/** Zooms with the wheel only while Ctrl is held, so that the page still scrolls. */
function zoom() {
  return [{ type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: false, moveOnMouseWheel: false, filterMode: "none" }];
}

function fitnessLines(learning, xs, colours) {
  const [first, second, third] = colours.series;
  const series = [];
  if (learning.median) {
    series.push(band("quartiles", xs, learning.lower.data, learning.upper.data, first));
    series.push(line("median member", xs, learning.median.data, first));
  }
  if (learning.best) series.push(line(`best ${learning.individual}`, xs, learning.best.data, second));
  if (learning.elite) series.push(line("best elite", xs, learning.elite.data, third));
  return series;
}

/** The interquartile mean of independent seeds, at the generations for which it was computed. */
function seedLines({ points, value, low, high }, xs, colours) {
  const at = points.map((index) => xs[index]);
  return [band("interval", at, low.data, high.data, colours.series[0]), line("interquartile mean", at, value.data, colours.series[0])];
}

function agentLines(run, xs, colours) {
  const agents = Object.entries(run.learning.agents);
  const shades = groupColours(agents.length, colours);
  return agents.map(([agent, column], index) => line(agent, xs, run.metrics[column].data, shades[index]));
}

function learningColumns(run) {
  const { learning, metrics } = run;
  const seeds = Object.keys(learning.agents).length > 1 ? null : learning.seeds;
  const pick = (values) => (seeds ? seeds.points.map((index) => values[index]) : values);
  const columns = { generation: pick(generations(run)), env_steps: pick(learning.env_steps.data), seconds: pick(learning.seconds.data) };
  if (seeds) Object.assign(columns, { iqm: seeds.value.data, low: seeds.low.data, high: seeds.high.data });
  if (learning.best) columns.best = learning.best.data;
  for (const name of ["lower", "median", "upper", "elite"]) if (learning[name]) columns[name] = learning[name].data;
  for (const [agent, column] of Object.entries(learning.agents)) columns[`return/${agent}`] = metrics[column].data;
  return columns;
}

function metricChart(run, state, [column, title]) {
  const csv = () => ({ generation: generations(run), env_steps: run.metrics.env_steps.data, [column]: run.metrics[column].data });
  return columnChart(run, state, () => column, { title, name: column, csv });
}

/** Any column of metrics.csv, one at a time. */
function explorer(run, state) {
  const shown = new Set(["generation", "env_steps", ...run.learning.panels.map(([column]) => column)]);
  const columns = Object.keys(run.metrics).filter((name) => !shown.has(name));
  const varies = (name) => run.metrics[name].data.some((value, _, values) => value !== values[0]);
  let column = columns.find((name) => name.endsWith("critic_loss")) ?? columns.find((name) => name.includes("loss")) ?? columns.find(varies) ?? columns[0];
  const change = (event) => {
    column = event.target.value;
    figure.redraw();
  };
  const options = columns.map((name) => el("option", { value: name, selected: name === column }, name));
  const select = el("select", { "aria-label": "Column of metrics.csv", onchange: change }, ...options);
  const csv = () => ({ ...Object.fromEntries(Object.entries(run.metrics).map(([name, { data }]) => [name, data])), generation: generations(run) });
  const figure = columnChart(run, state, () => column, { title: "All logged metrics", name: "metrics", controls: [select], csv });
  return figure;
}

/** A chart of the column of metrics.csv whose name `pick` returns. */
function columnChart(run, state, pick, about) {
  const option = (colours) => {
    const { xs, base, head } = along(run, state, colours);
    const { data } = run.metrics[pick()];
    const series = [line(pick(), xs, data, colours.series[0])];
    const counts = data.every((value) => Number.isInteger(value) || Number.isNaN(value));
    return { xAxis: base, yAxis: sideAxis(colours, "", { minInterval: counts ? 1 : 0 }), series, tooltip: { ...basics(colours).tooltip, formatter: axisTooltip(head) }, dataZoom: zoom(), grid: { ...basics(colours).grid, top: 16, bottom: 30 } };
  };
  return chart({ ...about, height: 220, option });
}
