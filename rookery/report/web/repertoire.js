// Repertoire: fitness of its cells over time, and playback of the policy of a clicked cell.

const SVG = "http://www.w3.org/2000/svg";
const MAP_SIDE = 1000; // units of a map's longer side

function repertoireSection(run, player) {
  const { repertoire } = run;
  const state = new RepertoireState(run);
  const maps = repertoire.maps.map((map) => new RepertoireMap(run, map, state));
  const show = () => {
    for (const map of maps) map.paint();
    counts.replaceChildren(state.words());
  };
  const counts = el("p", { class: "note", "aria-live": "polite" });
  const chosen = el("p", { class: "note chosen", "aria-live": "polite" }, player ? "Click a cell to play an episode of its policy." : "Click a cell to see the fitness of its policy.");
  const choose = (cell) => chosen.replaceChildren(...state.choose(cell, player, maps));
  for (const map of maps) map.onchoose = choose;
  const slider = state.times.length > 1 ? timeSlider(state, show) : null;
  const several = maps.length > 1;
  const figure = frame(
    { title: several ? "Repertoire, two dimensions at a time" : "Repertoire", name: "repertoire", wide: several, csv: () => state.columns(), note: several ? "A tile shows the best fitness of its cells." : null },
    el("div", {}, el("div", { class: several ? "maps" : "map" }, ...maps.map((map) => map.root)), scaleBar(state), slider, counts, chosen),
  );
  show();
  const beside = player ? playerFrame(run, player, "Episode of a cell's policy") : noEpisodes(run);
  if (player) player.listen((episode) => Number.isInteger(episode.cell) && state.select(episode.cell, maps));
  return section("repertoire", "Repertoire", el("div", { class: "grid" }, figure, beside));
}

/** The elites at a time: fitness of each cell, NaN where empty. */
class RepertoireState {
  constructor(run) {
    this.run = run;
    this.last = run.repertoire.fitness.data;
    const { history } = run.repertoire;
    this.times = history ? [...new Set(history.generation.data)] : [];
    this.fitness = this.last;
    this.range = [quantile(this.last, 0.02), quantile(this.last, 0.98)]; // outliers must not take up the colour range
    this.selected = null;
    this.time = null;
  }

  /** Sets the state after the generation at this index of `times`; the final state for the last. */
  at(place) {
    this.time = place >= this.times.length - 1 ? null : this.times[place];
    if (this.time === null) {
      this.fitness = this.last;
      return;
    }
    const { generation, cell, fitness } = this.run.repertoire.history;
    this.fitness = new Float32Array(this.last.length).fill(NaN);
    for (let row = 0; row < generation.data.length && generation.data[row] <= this.time; row++) this.fitness[cell.data[row]] = fitness.data[row];
  }

  words() {
    const occupied = this.fitness.filter(Number.isFinite).length;
    const [, best] = extent(this.fitness) || [0, NaN];
    const when = this.time === null ? "At the end" : `After generation ${this.time + 1}`;
    return `${when}: ${occupied.toLocaleString("en")} of ${this.fitness.length.toLocaleString("en")} cells, best ${written(best)}.`;
  }

  colour(fitness) {
    const [low, high] = this.range;
    return shade(high > low ? (fitness - low) / (high - low) : 1);
  }

  distance(one, other) {
    const { centroids, limits } = this.run.repertoire;
    const size = centroids.shape[1];
    const parts = range(size).map((k) => (centroids.data[one * size + k] - centroids.data[other * size + k]) / (limits[1][k] - limits[0][k] || 1));
    return Math.hypot(...parts);
  }

  nearest(cell, candidates) {
    let best = null;
    for (const other of candidates) if (best === null || this.distance(cell, other) < this.distance(cell, best)) best = other;
    return best;
  }

  /** Chooses a cell, or the nearest one with an elite; plays it, or the nearest one with a recorded episode. */
  choose(cell, player, maps) {
    const words = [];
    if (!Number.isFinite(this.last[cell])) {
      const other = this.nearest(cell, range(this.last.length).filter((i) => Number.isFinite(this.last[i])));
      if (other === null) return ["The repertoire is empty."];
      words.push(`Cell ${cell} is empty; the nearest with an elite is cell ${other}. `);
      cell = other;
    }
    words.push(`Cell ${cell}: fitness ${written(this.last[cell])}, descriptor (${this.descriptor(cell).map(written).join(", ")}). `);
    if (player) words.push(this.play(cell, player));
    this.select(cell, maps);
    return words;
  }

  /** Marks a cell on all maps. */
  select(cell, maps) {
    this.selected = cell;
    for (const map of maps) map.mark();
  }

  descriptor(cell) {
    const { data, shape } = this.run.repertoire.descriptors;
    return Array.from(data.subarray(cell * shape[1], (cell + 1) * shape[1]));
  }

  play(cell, player) {
    const recorded = player.episodes.map((episode) => episode.cell).filter((other) => other !== undefined && other !== null);
    if (!recorded.length) return "";
    const other = recorded.includes(cell) ? cell : this.nearest(cell, recorded);
    player.show("cell", other);
    const late = this.time === null ? "" : " The episode is of the final elite.";
    return (other === cell ? "Its episode is shown." : `It has no recorded episode; the one of cell ${other}, the nearest with an episode, is shown.`) + late;
  }

  columns() {
    const { centroids, descriptors } = this.run.repertoire;
    const size = centroids.shape[1];
    const cells = range(this.fitness.length);
    const columns = { cell: cells, fitness: this.fitness };
    for (const k of range(size)) columns[`centroid/${k}`] = cells.map((i) => centroids.data[i * size + k]);
    if (this.time === null) for (const k of range(size)) columns[`descriptor/${k}`] = cells.map((i) => descriptors.data[i * size + k]);
    return columns;
  }
}

function quantile(values, share) {
  const known = Float32Array.from(values).filter(Number.isFinite).sort();
  return known.length ? known[Math.floor(share * (known.length - 1))] : 0;
}

/** One map: a polygon per cell, or per tile of several cells. */
class RepertoireMap {
  constructor(run, map, state) {
    Object.assign(this, { run, map, state, onchoose: () => {} });
    const { names, limits } = run.repertoire;
    const [x, y] = map.axes;
    this.low = [limits[0][x], y === null ? 0 : limits[0][y]];
    this.high = [limits[1][x], y === null ? 1 : limits[1][y]];
    const share = y === null ? 0.12 : Math.max(0.4, Math.min(1.3, (this.high[1] - this.low[1]) / (this.high[0] - this.low[0])));
    this.sides = [MAP_SIDE, MAP_SIDE * share];
    this.build();
    const label = (axis) => el("span", { class: "axis" }, el("span", {}, written(limits[0][axis])), el("span", { class: "axis-name" }, names[axis]), el("span", {}, written(limits[1][axis])));
    const side = y === null ? null : el("div", { class: "side-axis" }, label(y));
    this.root = el("div", { class: "map-box" }, side, el("div", { class: "map-body" }, this.svg, label(x)));
  }

  build() {
    const { starts, points, of } = this.map;
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${this.sides[0]} ${this.sides[1]}`);
    this.svg.setAttribute("class", "cells");
    this.svg.setAttribute("role", "application");
    this.svg.setAttribute("tabindex", "0");
    this.svg.setAttribute("aria-label", "Map of the repertoire: arrow keys choose the next cell");
    this.svg.addEventListener("keydown", (event) => this.pressed(event));
    const count = starts.data.length - 1;
    this.cells = range(count).map(() => []);
    of.data.forEach((polygon, cell) => this.cells[polygon].push(cell));
    this.polygons = range(count).map((index) => this.polygon(points.data, starts.data[index], starts.data[index + 1], index, count));
    this.svg.append(...this.polygons);
    this.star = document.createElementNS(SVG, "circle");
    this.star.setAttribute("class", "chosen-cell");
    this.star.setAttribute("r", "11");
    this.svg.append(this.star);
    this.svg.addEventListener("click", (event) => event.target.dataset.index && this.clicked(Number(event.target.dataset.index)));
    this.svg.addEventListener("pointerover", (event) => event.target.dataset.index && this.hover(Number(event.target.dataset.index)));
  }

  polygon(points, from, to, index, count) {
    const corners = range(to - from).map((i) => this.place(points[2 * (from + i)], points[2 * (from + i) + 1]).map((part) => part.toFixed(1)).join(","));
    const polygon = document.createElementNS(SVG, "polygon");
    polygon.setAttribute("points", corners.join(" "));
    polygon.dataset.index = index;
    if (count > 2500) polygon.setAttribute("class", "fine");
    polygon.append(document.createElementNS(SVG, "title"));
    return polygon;
  }

  place(x, y) {
    const share = [(x - this.low[0]) / (this.high[0] - this.low[0]), (y - this.low[1]) / (this.high[1] - this.low[1])];
    return [share[0] * this.sides[0], (1 - share[1]) * this.sides[1]];
  }

  /** The best cell of a polygon; undefined if all are empty. */
  best(index, fitness) {
    const occupied = this.cells[index].filter((cell) => Number.isFinite(fitness[cell]));
    return occupied.sort((a, b) => fitness[b] - fitness[a])[0];
  }

  clicked(index) {
    const cell = this.best(index, this.state.last) ?? this.cells[index][0];
    if (cell === undefined) return;
    this.onchoose(cell);
  }

  /** Arrow keys choose the nearest polygon with an elite in their direction. */
  pressed(event) {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!direction) return;
    event.preventDefault();
    const from = this.marked();
    const ahead = range(this.polygons.length).filter((index) => this.best(index, this.state.last) !== undefined);
    const away = (index) => {
      const [x, y] = this.middle(index);
      const [along, across] = [(x - from[0]) * direction[0] + (y - from[1]) * direction[1], Math.abs((x - from[0]) * direction[1]) + Math.abs((y - from[1]) * direction[0])];
      return along > 1 ? along + 2 * across : Infinity;
    };
    const next = ahead.reduce((best, index) => (away(index) < away(best) ? index : best), ahead[0]);
    if (next !== undefined && Number.isFinite(away(next))) this.clicked(next);
  }

  marked() {
    return [Number(this.star.getAttribute("cx")), Number(this.star.getAttribute("cy"))];
  }

  /** The mean of a polygon's corners. */
  middle(index) {
    const { starts, points } = this.map;
    const [from, to] = [starts.data[index], starts.data[index + 1]];
    const mean = (axis) => range(to - from).reduce((sum, i) => sum + points.data[2 * (from + i) + axis], 0) / (to - from);
    return this.place(mean(0), mean(1));
  }

  /** Sets a cell's title only when it is pointed at: thousands of titles would cost as much as the map. */
  hover(index) {
    const cell = this.best(index, this.state.fitness);
    const text = cell === undefined ? `cell ${this.cells[index].join(", ") || "none"}: empty` : `cell ${cell}: fitness ${written(this.state.fitness[cell])}`;
    this.polygons[index].firstChild.textContent = text;
  }

  paint() {
    this.polygons.forEach((polygon, index) => {
      const cell = this.best(index, this.state.fitness);
      polygon.style.fill = cell === undefined ? "" : this.state.colour(this.state.fitness[cell]);
      polygon.classList.toggle("empty", cell === undefined);
    });
    this.mark();
  }

  /** Puts a ring around the chosen cell, or around the best one. */
  mark() {
    const { centroids } = this.run.repertoire;
    const { fitness, selected } = this.state;
    let cell = selected;
    if (cell === null) for (const i of range(fitness.length)) if (Number.isFinite(fitness[i]) && (cell === null || fitness[i] > fitness[cell])) cell = i;
    const [x, y] = this.map.axes;
    this.star.style.display = cell === null ? "none" : "";
    if (cell === null) return;
    const size = centroids.shape[1];
    const [left, top] = this.place(centroids.data[cell * size + x], y === null ? 0.5 : centroids.data[cell * size + y]);
    this.star.setAttribute("cx", left);
    this.star.setAttribute("cy", top);
  }
}

function timeSlider(state, show) {
  const last = state.times.length - 1;
  const output = el("output", {}, `generation ${state.times[last] + 1}`);
  const move = (event) => {
    const place = Number(event.target.value);
    state.at(place);
    output.textContent = `generation ${state.times[place] + 1}`;
    show();
  };
  const slider = el("input", { type: "range", min: 0, max: last, value: last, "aria-label": "Generation", oninput: move });
  return el("label", { class: "slider" }, slider, output);
}

function scaleBar(state) {
  const shades = range(11).map((index) => shade(index / 10)).join(",");
  const [low, high] = state.range;
  return el("div", { class: "scale" }, el("span", {}, `\u2264 ${written(low)}`), el("span", { class: "scale-bar", style: `background:linear-gradient(to right,${shades})` }), el("span", {}, `\u2265 ${written(high)} fitness`));
}
