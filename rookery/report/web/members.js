// The population: which hyper-parameters its members had, generation by generation.

const MOST_POINTS = 6_000; // of a picture; beyond, every second generation is drawn, or every third and so on

/** The population, or that of each role where they breed apart. */
function populationSection(run) {
  const parts = run.populations.flatMap((population) => populationParts({ population }));
  return parts.length ? section("population", "Population", ...parts) : null;
}

function populationParts(run) {
  const { population } = run;
  const names = Object.keys(population.hyper);
  const parts = population.bred ? [lineageFigure(run)] : [];
  if (names.length) {
    const ranks = fitnessRanks(population.fitness);
    const several = population.winner && population.fitness.shape[1] > 1;
    const note = `Each point is a member, brighter the fitter it was in its generation${several ? "; the line follows the ancestors of the winner" : ""}.`;
    parts.push(el("p", { class: "lead" }, note), el("div", { class: "grid" }, ...names.map((name) => hyperChart(run, name, ranks))));
  }
  return population.name !== null && parts.length ? [el("h3", { class: "role" }, population.name), ...parts] : parts;
}

/** Rank in its generation: 1 the best, 0 the worst or not finite. */
function fitnessRanks({ shape: [generations, size], data }) {
  const ranks = new Float32Array(data.length);
  for (let g = 0; g < generations; g++) {
    const worth = (i) => (Number.isFinite(data[g * size + i]) ? data[g * size + i] : -Infinity);
    const order = range(size).sort((a, b) => worth(a) - worth(b) || a - b);
    order.forEach((member, place) => (ranks[g * size + member] = size > 1 ? place / (size - 1) : 1));
  }
  return ranks;
}

/** How a hyper-parameter is drawn: the discount by its distance from 1, what is positive by its magnitude. */
function hyperScale(name, values) {
  const shown = name === "discount" ? Float32Array.from(values, (value) => 1 - value) : values;
  const [low, high] = extent(shown) || [0, 1];
  const magnitude = low > 0 && high / low > 3;
  return { title: name === "discount" ? "1 \u2212 discount" : name, shown: magnitude ? Float32Array.from(shown, Math.log10) : shown, format: magnitude ? (value) => written(Number((10 ** value).toPrecision(2))) : written };
}

function hyperChart(run, name, ranks) {
  const { population } = run;
  const { shape: [generations, size], data } = population.hyper[name];
  const { title, shown, format } = hyperScale(name, data);
  const stride = Math.max(1, Math.ceil((generations * size) / MOST_POINTS));
  const points = [];
  for (let g = 0; g < generations; g += stride) {
    for (let i = 0; i < size; i++) points.push([g + 1, shown[g * size + i], ranks[g * size + i], i, g]);
  }
  const option = (colours) => ({
    xAxis: baseAxis(colours, "generation", { scale: false, min: 1, max: Math.max(2, generations), minInterval: 1, format: steps }),
    yAxis: sideAxis(colours, "", { format }),
    visualMap: { show: false, dimension: 2, min: 0, max: 1, inRange: { color: VIRIDIS }, seriesIndex: 0 },
    series: [{ type: "scatter", data: points, symbolSize: generations > 200 ? 3 : 5, itemStyle: { opacity: 0.85 }, progressive: 4000 }, winnersLine(population, shown, colours)],
    tooltip: { ...basics(colours).tooltip, trigger: "item", formatter: ({ value, seriesIndex }) => (seriesIndex ? "" : memberTip(run, value[4], value[3])) },
    grid: { ...basics(colours).grid, top: 16, bottom: 30 },
  });
  const thinned = stride > 1 ? `Every ${stride}th generation is drawn; the file has all.` : null;
  return chart({ title, note: thinned, name: `hyper-${population.name === null ? "" : `${population.name}-`}${name}`, height: 240, option, csv: () => memberColumns(run, { [name]: data }) });
}

function winnersLine(population, shown, colours) {
  const [, size] = population.fitness.shape;
  const winner = population.winner ? Array.from(population.winner.data) : [];
  const data = winner.map((member, g) => [g + 1, member < 0 ? null : shown[g * size + member]]);
  return { type: "line", data: size > 1 ? data : [], showSymbol: false, silent: true, color: colours.ink, lineStyle: { width: 1.5, color: colours.ink, opacity: 0.75 }, tooltip: { show: false }, z: 4 };
}

/** Who a member was: for hovering. */
function memberTip(run, generation, member) {
  const { population } = run;
  const [, size] = population.fitness.shape;
  const at = generation * size + member;
  const parent = population.parents.data[at];
  const whence = generation === 0 ? "newborn" : parent < 0 ? "out of the repertoire" : parent === member ? "survived" : `child of ${population.name ?? "member"} ${parent}`;
  const values = Object.entries(population.hyper).map(([name, { data }]) => el("div", {}, `${name} `, el("b", {}, written(data[at]))));
  const fitness = el("div", {}, "fitness ", el("b", {}, written(population.fitness.data[at])));
  return el("div", { class: "tip" }, el("div", { class: "tip-head" }, `${population.name ?? "member"} ${member}, generation ${generation + 1}`), el("div", {}, whence), fitness, ...values);
}

/** A row per generation and member. */
function memberColumns(run, more = {}) {
  const { fitness, parents } = run.population;
  const [generations, size] = fitness.shape;
  const cells = range(generations * size);
  const told = { generation: cells.map((i) => Math.floor(i / size)), member: cells.map((i) => i % size), parent: parents.data, fitness: fitness.data };
  return { ...told, ...more };
}
