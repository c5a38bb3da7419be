// Islands: the curve of each, and the migrations between them.

function islandsSection(run) {
  const { islands } = run;
  const notes = islands.notes.map((text) => el("p", { class: "note" }, text));
  return section("islands", "Islands", el("div", { class: "grid" }, islandCurves(islands, run.learning.label), migrationChart(islands), migrationTable(islands)), ...notes);
}

function islandCurves({ curves, elites }, label) {
  const name = elites ? "fitness of the best elite" : label;
  const option = (colours) => {
    const shades = groupColours(curves.length, colours);
    const series = curves.map(({ number, best }, index) => line(`island ${number}`, range(best.data.length).map((g) => g + 1), best.data, shades[index]));
    return {
      xAxis: baseAxis(colours, "generation", { format: steps, scale: false, min: 1, max: "dataMax", minInterval: 1 }),
      yAxis: sideAxis(colours, name),
      series,
      legend: { ...legend(colours, curves.map(({ number }) => `island ${number}`)), left: 60, right: 8 },
      tooltip: { ...basics(colours).tooltip, formatter: axisTooltip((value) => `generation ${value}`) },
      dataZoom: zoom(),
      grid: { ...basics(colours).grid, top: 56, bottom: 30 },
    };
  };
  const csv = () => {
    const columns = { island: [], generation: [], env_steps: [], best: [] };
    for (const { number, env_steps: xs, best } of curves) {
      best.data.forEach((value, g) => [["island", number], ["generation", g + 1], ["env_steps", xs.data[g]], ["best", value]].forEach(([column, cell]) => columns[column].push(cell)));
    }
    return columns;
  };
  return chart({ title: "Best of each island", name: "islands", wide: true, height: 320, option, csv });
}

/** Islands as rows: a line for each migration, from where and when it was published to where and when it was loaded. */
function migrationChart({ curves, moves, line: ancestors, elites }) {
  const count = moves.to.data.length;
  const rows = range(count).map((i) => [moves.to_generation.data[i], moves.to.data[i], moves.from_generation.data[i], moves.from.data[i], moves.fitness.data[i], moves.slot.data[i]]);
  const last = Math.max(...curves.map(({ best }) => best.data.length));
  const option = (colours) => {
    const shades = new Map(groupColours(curves.length, colours).map((colour, index) => [curves[index].number, colour]));
    const draw = (_, api) => {
      const [from, to] = [api.coord([api.value(2), api.value(3)]), api.coord([api.value(0), api.value(1)])];
      const colour = shades.get(api.value(3)) || colours.quiet;
      const children = [
        { type: "line", shape: { x1: from[0], y1: from[1], x2: to[0], y2: to[1] }, style: { stroke: colour, lineWidth: 1.5, opacity: 0.7 } },
        { type: "circle", shape: { cx: to[0], cy: to[1], r: 3.5 }, style: { fill: colour } },
      ];
      return { type: "group", children };
    };
    const numbers = curves.map(({ number }) => number);
    const ends = [{ type: "line", data: [[1, Math.min(...numbers)], [last, Math.max(...numbers)]], lineStyle: { opacity: 0 }, showSymbol: false, silent: true, tooltip: { show: false } }];
    const best = ancestors.length ? [line("ancestors of the best member", ancestors.map(([, g]) => g), ancestors.map(([island]) => island), colours.ink, { lineStyle: { width: 2.5, color: colours.ink, opacity: 0.75 }, sampling: undefined, silent: true, z: 3 })] : [];
    return {
      xAxis: baseAxis(colours, "generation", { format: steps, scale: false, min: 1, max: Math.max(2, last), minInterval: 1 }),
      yAxis: sideAxis(colours, "island", { nameLocation: "start", nameTextStyle: { color: colours.quiet, fontSize: 11, align: "left", padding: [0, 0, 0, -14] }, inverse: true, scale: false, min: Math.min(...numbers) - 1, max: Math.max(...numbers) + 1, interval: 1, format: (value) => (numbers.includes(value) ? String(value) : "") }),
      series: [...ends, { type: "custom", name: "migrations", data: rows, renderItem: draw, encode: { x: [0, 2], y: [1, 3] }, clip: true }, ...best],
      tooltip: { ...basics(colours).tooltip, trigger: "item", formatter: ({ value, seriesType }) => (seriesType === "custom" ? moveTip(value, elites) : "") },
      grid: { ...basics(colours).grid, top: 24, bottom: 30 },
    };
  };
  const what = elites ? "elites were merged" : "a member was replaced";
  const lineNote = ancestors.length ? " The dark line is the lineage of the best member of all islands." : "";
  const note = count ? `A line leads from the publication to the island where ${what}, in the colour of the island that it came from.${lineNote}` : "No island has imported anything yet.";
  return chart({ title: "Migrations", name: "migrations", wide: true, height: Math.max(180, 70 + 34 * curves.length), option, csv: () => Object.fromEntries(Object.entries(moves).map(([name, { data }]) => [name, data])), note });
}

function moveTip([generation, to, fromGeneration, from, fitness, slot], elites) {
  const target = elites ? `repertoire of island ${to}` : `island ${to}, member ${slot}`;
  return el("div", {}, el("div", { class: "tip-head" }, `island ${from}, generation ${fromGeneration}`), `to ${target}, after generation ${generation}: fitness `, el("b", {}, written(fitness)));
}

/** How often each island took something from each other one. */
function migrationTable({ curves, moves }) {
  const numbers = curves.map(({ number }) => number);
  const counts = new Map();
  moves.to.data.forEach((to, i) => {
    const key = `${moves.from.data[i]} ${to}`;
    counts.set(key, (counts.get(key) || 0) + 1);
  });
  const at = (from, to) => counts.get(`${from} ${to}`) || 0;
  const columns = [{ label: "from \\ to" }, ...numbers.map((to) => ({ label: `island ${to}`, numeric: true })), { label: "all", numeric: true }];
  const rows = numbers.map((from) => [`island ${from}`, ...numbers.map((to) => (from === to ? "\u2013" : String(at(from, to)))), String(numbers.reduce((sum, to) => sum + at(from, to), 0))]);
  const pairs = numbers.flatMap((from) => numbers.filter((to) => to !== from).map((to) => [from, to]));
  const csv = () => ({ from: pairs.map(([from]) => from), to: pairs.map(([, to]) => to), imports: pairs.map(([from, to]) => at(from, to)) });
  return frame({ title: "Imports", name: "imports", csv, wide: numbers.length > 4 }, table(columns, rows));
}
