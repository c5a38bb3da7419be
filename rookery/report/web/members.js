// Population: the hyper-parameters of its members by generation.

const MOST_POINTS = 6_000; // of a chart; with more, every k-th generation is drawn

/** The population, or one per role where roles evolve separately. */
function populationSection(run) {
  const parts = run.populations.flatMap((population) => populationParts({ population }));
  return parts.length ? section("population", "Population", ...parts) : null;
}

function populationParts(run) {
  const { population } = run;
  const names = Object.keys(population.hyper);
  const parts = population.evolves ? [lineageFigure(run)] : [];
  if (names.length) {
    const ranks = fitnessRanks(population.fitness);
    const several = population.best && population.fitness.shape[1] > 1;
    const note = `Each point is a member with the value that it trained with in a generation${several ? "; the line shows the ancestors of the last generation's best member" : ""}.`;
    parts.push(el("p", { class: "lead" }, note), rankScale(population), el("div", { class: "grid" }, ...names.map((name) => hyperChart(run, name, ranks))));
  }
  return population.name !== null && parts.length ? [el("h3", { class: "role" }, population.name), ...parts] : parts;
}

/** The colours of ranks. */
function rankScale({ label }) {
  return el("div", { class: "scale" }, el("span", {}, "lowest"), el("span", { class: "scale-bar scale-ranks" }), el("span", {}, `highest ${label} of its generation`));
}

/** Rank of each member in its generation by fitness or rating: 1 the best, 0 the worst or not finite, equal ones the mean. */
function fitnessRanks({ shape: [generations, size], data }) {
  const ranks = new Float32Array(data.length);
  for (let g = 0; g < generations; g++) {
    const worth = (i) => (Number.isFinite(data[g * size + i]) ? data[g * size + i] : -Infinity);
    const order = range(size).sort((a, b) => worth(a) - worth(b) || a - b);
    for (let first = 0, last = 0; first < size; first = last + 1) {
      for (last = first; last + 1 < size && worth(order[last + 1]) === worth(order[first]); ) last++;
      const rank = size === 1 ? 1 : worth(order[first]) === -Infinity ? 0 : (first + last) / 2 / (size - 1);
      order.slice(first, last + 1).forEach((member) => (ranks[g * size + member] = rank));
    }
  }
  return ranks;
}

/**
 * The axis of a hyper-parameter on its declared scale: `OneMinusLog` as its distance from 1; runs that recorded no scale have
 * wide positive ranges logarithmically. Logarithms have ticks at 1, 2 and 5 times powers of ten. Names, if its values are places
 * in a list of them, have a tick each; members of a generation, `size` of them, with one name lie side by side.
 */
function hyperScale(name, values, scale = null, names = null, size = 1) {
  if (names) {
    const shown = Float32Array.from(values, (value, i) => value + (0.5 * ((i % size) + 0.5)) / size - 0.25);
    return { title: name, shown, axis: { ticks: range(names.length), format: (value) => names[value] ?? "", min: -0.5, max: names.length - 0.5 } };
  }
  const reversed = scale === "OneMinusLog" || (scale === null && name === "discount");
  const shown = reversed ? Float32Array.from(values, (value) => 1 - value) : values;
  const [low, high] = extent(shown) || [0, 1];
  const logarithmic = low > 0 && (scale === null ? high / low > 3 : scale !== "Uniform" && scale !== "Whole");
  const title = reversed ? `1 \u2212 ${name}` : name;
  if (!logarithmic) {
    const ticks = evenSteps125(low, high, scale === "Whole");
    return { title, shown, axis: { format: written, ...(ticks && { ticks, min: ticks[0], max: ticks.at(-1) }) } };
  }
  const ticks = steps125(low, high).map(Math.log10);
  const format = (value) => written(Number((10 ** value).toPrecision(2)));
  return { title, shown: Float32Array.from(shown, Math.log10), axis: { ticks, format, min: ticks[0], max: ticks.at(-1) } };
}

/** 1, 2 and 5 times powers of ten from the last one up to `low` to the first one from `high` on; of many the powers alone. */
function steps125(low, high) {
  const powers = range(Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1).map((i) => Math.floor(Math.log10(low)) + i);
  const all = powers.flatMap((power) => (powers.length > 4 ? [1] : [1, 2, 5]).map((digit) => Number(`${digit}e${power}`)));
  const first = all.findLastIndex((value) => value <= low * 1.0001);
  const last = all.findIndex((value) => value >= high * 0.9999);
  return all.slice(Math.max(first, 0), last < 0 ? all.length : Math.max(last, first + 1) + 1);
}

/** At most 7 multiples of 1, 2 or 5 times a power of ten around an interval, of whole numbers at least 1; null without an interval. */
function evenSteps125(low, high, whole = false) {
  if (!(high > low)) return null;
  const power = Math.max(10 ** Math.floor(Math.log10((high - low) / 5)), whole ? 1 : 0);
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => Math.ceil(high / size) - Math.floor(low / size) <= 6);
  return range(Math.ceil(high / step) - Math.floor(low / step) + 1).map((i) => Number(((Math.floor(low / step) + i) * step).toPrecision(12)));
}

function hyperChart(run, name, ranks) {
  const { population } = run;
  const { shape: [generations, size], data } = population.hyper[name];
  const { title, shown, axis } = hyperScale(name, data, population.scales[name], population.choices[name], size);
  const stride = Math.max(1, Math.ceil((generations * size) / MOST_POINTS));
  const points = [];
  for (let g = 0; g < generations; g += stride) {
    for (let i = 0; i < size; i++) points.push([g + 1, shown[g * size + i], ranks[g * size + i], i, g]);
  }
  const option = (colours) => ({
    xAxis: baseAxis(colours, "generation", { scale: false, min: 1, max: Math.max(2, generations), minInterval: 1, format: steps }),
    yAxis: sideAxis(colours, "", axis),
    visualMap: { show: false, dimension: 2, min: 0, max: 1, inRange: { color: colours.ranks }, seriesIndex: 0 },
    series: [{ type: "scatter", data: points, symbolSize: generations > 200 ? 3 : 5, itemStyle: { opacity: 0.85 }, progressive: 4000 }, ancestorsLine(population, shown, colours)],
    tooltip: { ...basics(colours).tooltip, trigger: "item", formatter: ({ value, seriesIndex }) => (seriesIndex ? "" : memberTip(run, value[4], value[3])) },
    grid: { ...basics(colours).grid, top: 16, bottom: 30 },
  });
  const thinned = stride > 1 ? `Every ${stride}th generation is drawn; the CSV file contains all.` : null;
  return chart({ title, note: thinned, name: `hyper-${population.name === null ? "" : `${population.name}-`}${name}`, height: 240, option, csv: () => memberColumns(run, { [name]: hyperValues(population, name) }) });
}

/** The values of a hyper-parameter: numbers, or names. */
function hyperValues({ hyper, choices }, name) {
  const { data } = hyper[name];
  return choices[name] ? Array.from(data, (place) => choices[name][place]) : data;
}

function ancestorsLine(population, shown, colours) {
  const [, size] = population.fitness.shape;
  const best = population.best ? Array.from(population.best.data) : [];
  const data = best.map((member, g) => [g + 1, member < 0 ? null : shown[g * size + member]]);
  return { type: "line", data: size > 1 ? data : [], showSymbol: false, silent: true, color: colours.ink, lineStyle: { width: 1.5, color: colours.ink, opacity: 0.75 }, tooltip: { show: false }, z: 4 };
}

/** Tooltip of a member: origin, fitness or rating, and hyper-parameters. */
function memberTip(run, generation, member) {
  const { population } = run;
  const [, size] = population.fitness.shape;
  const at = generation * size + member;
  const text = (name, value) => (population.choices[name] ? population.choices[name][value] : written(value));
  const values = Object.entries(population.hyper).map(([name, { data }]) => el("div", {}, `${name} `, el("b", {}, text(name, data[at]))));
  const fitness = el("div", {}, `${population.label} `, el("b", {}, written(population.fitness.data[at])));
  return el("div", { class: "tip" }, el("div", { class: "tip-head" }, `${population.name ?? "member"} ${member}, generation ${generation + 1}`), el("div", {}, originText(population, generation, member)), fitness, ...values);
}

/** Where the parameters of a member come from: its slot's latest replacement, in this generation or before. */
function originText({ name, outside, parents, fitness }, generation, member) {
  const [, size] = fitness.shape;
  let from = generation;
  while (from > 0 && parents.data[from * size + member] === member) from--;
  if (from === 0) return generation === 0 ? "initial member" : "never replaced";
  const parent = parents.data[from * size + member];
  const replaced = parent < 0 ? `from ${outside} after generation ${from}` : `copied from ${name ?? "member"} ${parent} after generation ${from}`;
  return from === generation ? replaced : `survived; ${replaced}`;
}

/** A row per generation, counted from 1, and member. */
function memberColumns(run, more = {}) {
  const { fitness, label, parents } = run.population;
  const [generations, size] = fitness.shape;
  const cells = range(generations * size);
  const columns = { generation: cells.map((i) => Math.floor(i / size) + 1), member: cells.map((i) => i % size), parent: parents.data, [label]: fitness.data };
  return { ...columns, ...more };
}
