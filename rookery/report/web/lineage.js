// Lineage: members by generation, coloured by fitness or rating; parents and children, and the ancestors of the best member.

const LINEAGE = { left: 34, right: 10, top: 8, bottom: 26 }; // pixels around the tree
const MOST_DEAD_ENDS = 200; // generations; with more, only lineages that survive to the last generation are drawn

function lineageFigure(run) {
  const canvas = el("canvas", { class: "lineage", role: "img", tabindex: "0", "aria-label": "Lineage of the population" });
  const details = el("div", { class: "details", "aria-live": "polite" }, `Point at a member to see its parent, ${run.population.label} and hyper-parameters.`);
  const tree = new LineageTree(run, canvas, details);
  const all = Object.fromEntries(Object.keys(run.population.hyper).map((name) => [name, hyperValues(run.population, name)]));
  const note = "A row is a slot of the population, a column a generation. A curve between two rows is a replacement: from there on, the slot at its right end is a copy of the member at its left end. The thick line shows the ancestors of the last generation's best member; pale cells and thin curves have no descendant in the last generation.";
  const body = el("div", { class: "lineage-box" }, canvas, rankScale(run.population), details);
  whenSeen(canvas, () => tree.begin());
  const { name } = run.population;
  return frame({ title: name === null ? "Lineage" : `Lineage of ${name}`, name: name === null ? "lineage" : `lineage-${name}`, wide: true, note, csv: () => memberColumns(run, all) }, body);
}

class LineageTree {
  constructor(run, canvas, details) {
    Object.assign(this, { run, canvas, details, hovered: null, signal: scopeController.signal, ground: document.createElement("canvas") });
    const { shape } = run.population.fitness;
    [this.generations, this.size] = shape;
    this.ranks = fitnessRanks(run.population.fitness);
    this.parents = run.population.parents.data;
    this.descends = run.population.descends.data;
    this.best = run.population.best ? run.population.best.data : [];
  }

  begin() {
    const sized = new ResizeObserver(() => this.canvas.parentElement.clientWidth !== this.width && this.draw());
    sized.observe(this.canvas.parentElement);
    this.signal.addEventListener("abort", () => sized.disconnect());
    onTheme(() => this.draw(), this.signal);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.hover(null));
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    this.draw();
  }

  /** Centre of a member's cell, in pixels. */
  place(generation, member) {
    const x = LINEAGE.left + ((generation + 0.5) * (this.width - LINEAGE.left - LINEAGE.right)) / this.generations;
    const y = LINEAGE.top + ((member + 0.5) * (this.height - LINEAGE.top - LINEAGE.bottom)) / this.size;
    return [x, y];
  }

  draw() {
    const { canvas } = this;
    this.width = canvas.parentElement.clientWidth;
    if (!this.width) return;
    this.height = Math.max(140, Math.min(520, LINEAGE.top + LINEAGE.bottom + this.size * (this.size > 24 ? 7 : 20)));
    const scale = window.devicePixelRatio || 1;
    for (const one of [canvas, this.ground]) [one.width, one.height] = [this.width * scale, this.height * scale];
    canvas.style.height = `${this.height}px`;
    this.context = this.ground.getContext("2d");
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.colours = theme();
    this.drawMembers();
    this.drawDescent();
    this.drawWinner();
    this.drawAxes();
    this.drawPointed();
    canvas.dataset.drawn = "true";
  }

  /** The cached tree, and over it the ancestors of the member under the pointer. */
  drawPointed() {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.ground, 0, 0);
    const scale = window.devicePixelRatio || 1;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.context = context;
    if (this.hovered) this.drawHovered();
  }

  drawMembers() {
    const { context } = this;
    const [wide, tall] = [(this.width - LINEAGE.left - LINEAGE.right) / this.generations, (this.height - LINEAGE.top - LINEAGE.bottom) / this.size];
    for (let g = 0; g < this.generations; g++) {
      for (let i = 0; i < this.size; i++) {
        const at = g * this.size + i;
        context.globalAlpha = this.descends[at] ? 0.95 : 0.45;
        context.fillStyle = Number.isFinite(this.run.population.fitness.data[at]) ? shade(this.ranks[at], this.colours.ranks) : this.colours.line;
        const [x, y] = this.place(g, i);
        context.fillRect(x - wide / 2, y - tall * 0.36, wide + (this.generations > 60 ? 0.6 : -1), tall * 0.72);
      }
    }
    context.globalAlpha = 1;
  }

  /** Curves from parents to children in another row: faint where the lineage died out, else with an edge that shows on any cell. */
  drawDescent() {
    const { context, colours } = this;
    const looks = [[0, colours.quiet, 0.7, 0.45], [1, colours.card, 3.2, 0.9], [1, colours.ink, 1.4, 0.9]];
    for (const [survives, colour, width, opacity] of looks.slice(this.generations > MOST_DEAD_ENDS ? 1 : 0)) {
      context.strokeStyle = colour;
      context.globalAlpha = opacity;
      context.lineWidth = width;
      context.beginPath();
      for (let g = 1; g < this.generations; g++) {
        for (let i = 0; i < this.size; i++) {
          const parent = this.parents[g * this.size + i];
          if (parent !== i && parent >= 0 && Boolean(this.descends[g * this.size + i]) === Boolean(survives)) this.join(g, parent, i);
        }
      }
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  join(generation, parent, child) {
    const [x, y] = this.place(generation - 1, parent);
    const [toX, toY] = this.place(generation, child);
    const middle = (x + toX) / 2;
    this.context.moveTo(x, y);
    this.context.bezierCurveTo(middle, y, middle, toY, toX, toY);
  }

  drawWinner() {
    const { context, colours, best } = this;
    for (const [width, colour] of [[4.5, colours.card], [2.5, colours.accent]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      for (let g = 1; g < best.length; g++) if (best[g - 1] >= 0) this.join(g, best[g - 1], best[g]);
      context.stroke();
    }
    if (!best.length) return;
    const [x, y] = this.place(best.length - 1, best.at(-1));
    context.fillStyle = colours.accent;
    context.beginPath();
    context.arc(x, y, 5, 0, 2 * Math.PI);
    context.fill();
  }

  drawAxes() {
    const { context, colours } = this;
    context.fillStyle = colours.quiet;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil((this.size * 14) / (this.height - LINEAGE.top - LINEAGE.bottom)));
    for (let i = 0; i < this.size; i += every) context.fillText(String(i), LINEAGE.left - 8, this.place(0, i)[1]);
    context.textAlign = "center";
    const stride = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((count) => (this.width / this.generations) * count > 44) || 20000;
    for (let g = stride - 1; g < this.generations; g += stride) context.fillText(String(g + 1), this.place(g, 0)[0], this.height - 10);
  }

  /** The ancestors of the member under the pointer. */
  drawHovered() {
    const { context, colours } = this;
    for (const [width, colour] of [[4.5, colours.card], [2, colours.ink]]) {
      let [generation, member] = this.hovered;
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      while (generation > 0 && this.parents[generation * this.size + member] >= 0) {
        const parent = this.parents[generation * this.size + member];
        this.join(generation, parent, member);
        [generation, member] = [generation - 1, parent];
      }
      context.stroke();
    }
    const [x, y] = this.place(...this.hovered);
    context.beginPath();
    context.arc(x, y, 5, 0, 2 * Math.PI);
    context.stroke();
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - LINEAGE.left) / (box.width - LINEAGE.left - LINEAGE.right);
    const down = (event.clientY - box.top - LINEAGE.top) / (box.height - LINEAGE.top - LINEAGE.bottom);
    if (share < 0 || share >= 1 || down < 0 || down >= 1) return;
    this.hover([Math.floor(share * this.generations), Math.floor(down * this.size)]);
  }

  pressed(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!(event.key in moves)) return;
    const [g, i] = this.hovered || [this.generations - 1, this.best.length ? this.best.at(-1) : 0];
    const [across, down] = moves[event.key];
    this.hover([Math.max(0, Math.min(this.generations - 1, g + across)), Math.max(0, Math.min(this.size - 1, i + down))]);
    event.preventDefault();
  }

  hover(member) {
    if (String(member) === String(this.hovered)) return;
    this.hovered = member;
    if (member) this.details.replaceChildren(memberTip(this.run, ...member));
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.drawPointed());
  }
}
