// System: speed, time per phase of a generation, memory, and problems.

const PHASES = { seconds: "training", seconds_evaluation: "evaluation and selection", seconds_tables: "tables and live report", seconds_checkpoint: "checkpoint" };

function systemSection(run) {
  const figures = [speedChart(run), phaseChart(run), wrongsFigure(run), machineFigure(run)];
  return section("system", "System", el("div", { class: "grid" }, ...figures));
}

/** The numbers of the generations, from 1. */
function generations(run) {
  return Float64Array.from(run.metrics.generation.data, (generation) => generation + 1);
}

function speedChart(run) {
  const xs = generations(run);
  const values = run.metrics.steps_per_second.data;
  const option = (colours) => ({
    xAxis: baseAxis(colours, "generation", { scale: false, min: 1, max: Math.max(2, xs.length), minInterval: 1, format: steps }),
    yAxis: sideAxis(colours, "", { min: 0, scale: false, format: steps }),
    series: [line("steps per second", xs, values, colours.series[0])],
    tooltip: { ...basics(colours).tooltip, formatter: axisTooltip((value) => `generation ${value}`) },
    grid: { ...basics(colours).grid, top: 16, bottom: 30 },
  });
  return chart({ title: "Environment steps per second", name: "speed", height: 220, option, csv: () => ({ generation: xs, steps_per_second: values }), note: withoutUpdates(run) });
}

/** A note on the first generations of an off-policy agent, whose losses are 0 until its first update; null if there are none. */
function withoutUpdates({ metrics }) {
  if (!metrics.critic_loss) return null;
  const { data } = metrics.critic_loss;
  const first = data.findIndex((loss) => loss !== 0);
  if (first < 0) return "No gradient update was due yet: all generations only collected transitions.";
  return first ? `The first ${first > 1 ? `${first} generations` : "generation"} only collected transitions, without gradient updates, and took less time.` : null;
}

/** Seconds of each generation, stacked by phase. */
function phaseChart(run) {
  const xs = generations(run);
  const phases = Object.entries(PHASES).filter(([column]) => column in run.metrics);
  const evaluation = run.metrics.seconds_evaluation?.data; // a part of the computation
  if (!evaluation) phases[0][1] = "computation: training, evaluation, selection";
  const timed = (column) => (column === "seconds" && evaluation ? run.metrics.seconds.data.map((all, index) => all - evaluation[index]) : run.metrics[column].data);
  const option = (colours) => ({
    xAxis: baseAxis(colours, "generation", { scale: false, min: 1, max: Math.max(2, xs.length), minInterval: 1, format: steps }),
    yAxis: sideAxis(colours, "", { min: 0, scale: false, format: clock }),
    series: phases.map(([column, name], index) => line(name, xs, timed(column), colours.series[index], { stack: "time", areaStyle: { opacity: 0.35 }, lineStyle: { width: 1 }, sampling: undefined })),
    legend: { ...legend(colours, phases.map(([, name]) => name)), left: 8, right: undefined },
    tooltip: { ...basics(colours).tooltip, formatter: axisTooltip((value) => `generation ${value}, seconds`) },
    grid: { ...basics(colours).grid, top: 48, bottom: 30 },
  });
  const compiled = run.compiled ? ` Compilation took ${clock(run.compiled)} in addition, before the first generation and after each resume.` : "";
  const note = compiled.trim() || null;
  const csv = () => ({ generation: xs, ...Object.fromEntries(phases.map(([column]) => [column, timed(column)])) });
  return chart({ title: "Time of a generation", name: "phases", note, height: 260, option, csv });
}

function wrongsFigure(run) {
  const rows = run.wrongs.filter(({ name }) => name !== "warning").map(({ meaning, count }) => [el("span", { class: count ? "wrong" : "fine" }, written(count)), meaning]);
  const warnings = run.wrongs.filter(({ name }) => name === "warning").map(({ meaning }) => el("p", { class: "note wrong" }, meaning));
  const csv = () => ({ what: run.wrongs.map(({ meaning }) => meaning), count: run.wrongs.map(({ count }) => count) });
  return frame({ title: "Problems", name: "wrongs", csv }, el("div", {}, table([{ label: "count", numeric: true }, { label: "" }], rows), ...warnings));
}

function machineFigure(run) {
  const rows = run.facts.filter(([label]) => ["devices", "processor", "versions", "started"].includes(label));
  const { memory } = run;
  if (memory) {
    rows.push(["memory planned", `${bytes(memory.planned)} a device${memory.peak ? `, ${bytes(memory.peak)} while saving` : ""}`]);
    if (memory.used !== null && memory.used !== undefined) rows.push(["memory used", `${bytes(memory.used)} ${memory.meaning}`]);
  }
  for (const { at, text } of run.events) rows.push([at, text]);
  const csv = () => ({ what: rows.map(([label]) => label), text: rows.map(([, text]) => text) });
  return frame({ title: "Machine and journal", name: "machine", csv }, table([{ label: "" }, { label: "" }], rows));
}
