// Bodies in a plane on a canvas: discs with a nose in the direction of their heading, and a trail.

const PLANE = {
  trail: 20, // steps
  pieces: 40, // segments of a trail, so that it fades evenly
  nose: 2.0, // distance of a nose's tip from the centre of its body, in radii
  crossSteps: 15, // steps for which a cross marks the position of a body that became invisible
  least: 3.5, // pixels, the smallest radius, so that a small body in a large environment is visible
};

class PlaneView {
  constructor(stage, data) {
    this.scenery = data.scenery;
    this.pad = Math.max(0, ...this.scenery.radii);
    const [width, height] = [0, 1].map((axis) => this.scenery.upper[axis] - this.scenery.lower[axis] + 2 * this.pad);
    this.aspect = width / height;
    this.canvas = document.createElement("canvas");
    this.trails = document.createElement("canvas");
    stage.append(this.canvas);
    this.recolour(pageColours());
  }

  show(episode) {
    this.episode = episode;
  }

  recolour(colours) {
    this.colours = colours;
    this.kinds = kindColours(this.scenery.bodies, colours.series);
    this.ground = blend(colours.paper, colours.ink, 0.04);
  }

  resize(width, height, ratio) {
    for (const canvas of [this.canvas, this.trails]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const { lower, upper } = this.scenery;
    const span = [0, 1].map((axis) => upper[axis] - lower[axis] + 2 * this.pad);
    this.scale = Math.min(width / span[0], height / span[1]);
    const left = (width - this.scale * span[0]) / 2 - this.scale * (lower[0] - this.pad);
    const base = (height + this.scale * span[1]) / 2 + this.scale * (lower[1] - this.pad);
    for (const canvas of [this.canvas, this.trails]) {
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, ratio * left, ratio * base);
    }
    this.size = [width, height, -left, -base];
  }

  /** Pixels from metres, y upwards. */
  place(x, y) {
    return [x * this.scale, -y * this.scale];
  }

  draw(time) {
    const pen = this.canvas.getContext("2d");
    const [width, height, left, top] = this.size;
    pen.clearRect(left, top, width, height);
    const moment = this.episode.moment(time);
    const bodies = this.scenery.bodies.map((kind, body) => this.body(kind, body, time, moment));
    this.drawGround(pen);
    bodies.forEach((body) => this.drawReach(pen, body));
    this.drawWalls(pen);
    if (bodies.length === 1) this.drawPath(pen, time, moment);
    if (this.drawTrails(bodies, time)) pen.drawImage(this.trails, left, top, width, height);
    bodies.forEach((body) => this.drawBody(pen, body));
    bodies.forEach((body) => this.drawCross(pen, body));
  }

  /** Position, size and style of a body at a moment. */
  body(kind, index, time, moment) {
    const [x, y] = this.place(...this.episode.position(index, moment));
    return {
      index,
      x,
      y,
      colour: this.kinds.get(kind),
      radius: Math.max(PLANE.least, this.scenery.radii[index] * this.scale),
      reach: ((this.scenery.reaches || [])[index] || 0) * this.scale,
      heading: this.episode.heading(index, moment),
      visible: this.episode.visible(index, moment.frame),
      gone: this.episode.gone(index, time),
    };
  }

  drawGround(pen) {
    const { lower, upper, goals } = this.scenery;
    const [left, top] = this.place(lower[0], upper[1]);
    const [right, bottom] = this.place(upper[0], lower[1]);
    pen.fillStyle = css(this.ground);
    pen.strokeStyle = css(this.colours.line);
    pen.lineWidth = 1;
    pen.beginPath();
    pen.roundRect(left, top, right - left, bottom - top, 3);
    pen.fill();
    pen.stroke();
    this.drawSurface(pen);
    for (const [x, y, radius] of goals || []) this.drawGoal(pen, this.place(x, y), radius * this.scale);
  }

  /** The surface of the ground, filled below. */
  drawSurface(pen) {
    const { lower, upper, ground: points = [] } = this.scenery;
    if (!points.length) return;
    const [left, top] = this.place(lower[0], upper[1]);
    const [right, bottom] = this.place(upper[0], lower[1]);
    const surface = points.map(([x, y]) => this.place(x, y));
    const trace = () => surface.forEach(([x, y], index) => (index ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.save();
    pen.beginPath();
    pen.rect(left, top, right - left, bottom - top);
    pen.clip();
    pen.beginPath();
    trace();
    pen.lineTo(surface.at(-1)[0], bottom);
    pen.lineTo(surface[0][0], bottom);
    pen.fillStyle = css(this.colours.quiet, 0.3);
    pen.fill();
    pen.beginPath();
    trace();
    pen.strokeStyle = css(this.colours.quiet);
    pen.lineWidth = 2;
    pen.stroke();
    pen.restore();
  }

  drawGoal(pen, [x, y], radius) {
    const green = this.colours.series[4];
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.fillStyle = css(green, 0.22);
    pen.fill();
    pen.strokeStyle = css(green);
    pen.lineWidth = 1.6;
    pen.stroke();
    pen.beginPath();
    pen.arc(x, y, Math.min(3, radius / 3), 0, 2 * Math.PI);
    pen.fillStyle = css(green);
    pen.fill();
  }

  drawWalls(pen) {
    pen.beginPath();
    for (const [x, y, otherX, otherY] of this.scenery.walls || []) {
      pen.moveTo(...this.place(x, y));
      pen.lineTo(...this.place(otherX, otherY));
    }
    pen.strokeStyle = css(blend(this.colours.quiet, this.colours.ink, 0.25));
    pen.lineWidth = Math.max(3, Math.min(6, this.size[0] / 110));
    pen.lineCap = "round";
    pen.stroke();
  }

  drawReach(pen, body) {
    if (!body.visible || !(body.reach > body.radius)) return;
    const [left, top] = this.place(this.scenery.lower[0], this.scenery.upper[1]);
    const [right, bottom] = this.place(this.scenery.upper[0], this.scenery.lower[1]);
    pen.save();
    pen.beginPath();
    pen.rect(left, top, right - left, bottom - top);
    pen.clip();
    pen.beginPath();
    pen.arc(body.x, body.y, body.reach, 0, 2 * Math.PI);
    pen.fillStyle = css(body.colour, 0.1);
    pen.fill();
    pen.strokeStyle = css(body.colour, 0.4);
    pen.lineWidth = 1;
    pen.stroke();
    pen.restore();
  }

  /** The path of a single body since the start; the paths of several would overlap. */
  drawPath(pen, time, moment) {
    const places = [];
    for (let frame = 0; frame <= moment.frame; frame++) {
      places.push(this.place(...this.episode.position(0, { frame, next: frame, mix: 0 })));
    }
    places.push(this.place(...this.episode.position(0, moment)));
    const colour = this.kinds.get(this.scenery.bodies[0]);
    pen.beginPath();
    places.forEach(([x, y]) => pen.lineTo(x, y));
    pen.strokeStyle = css(colour, 0.35);
    pen.lineWidth = 1.4;
    pen.lineJoin = "round";
    pen.stroke();
    pen.beginPath();
    pen.arc(...places[0], 3.5, 0, 2 * Math.PI);
    pen.fillStyle = css(this.ground);
    pen.fill();
    pen.strokeStyle = css(colour, 0.8);
    pen.stroke();
  }

  /** Draws trails to a separate layer. Returns whether there are any: Chromium may reuse a layer that was only cleared. */
  drawTrails(bodies, time) {
    const pen = this.trails.getContext("2d");
    const [width, height, left, top] = this.size;
    pen.clearRect(left, top, width, height);
    pen.lineCap = "round";
    return bodies.filter((body) => body.visible && this.drawTrail(pen, body, time)).length > 0;
  }

  /** Each segment first erases the pixels it covers: overlapping translucent strokes would be visible as beads. */
  drawTrail(pen, body, time) {
    const start = Math.max(0, time - PLANE.trail);
    let last = null;
    let drawn = false;
    for (let piece = 0; piece <= PLANE.pieces; piece++) {
      const then = time - PLANE.trail * (1 - piece / PLANE.pieces);
      if (then < start) continue;
      const moment = this.episode.moment(then);
      const here = this.place(...this.episode.position(body.index, moment));
      const moved = last && Math.hypot(here[0] - last[0], here[1] - last[1]) > 0.01;
      if (moved && this.episode.visible(body.index, moment.frame)) {
        this.drawPiece(pen, body, [last, here], piece / PLANE.pieces);
        drawn = true;
      }
      last = here;
    }
    return drawn;
  }

  drawPiece(pen, body, [from, to], fresh) {
    pen.beginPath();
    pen.moveTo(...from);
    pen.lineTo(...to);
    pen.lineWidth = Math.max(1, body.radius * 0.9 * fresh);
    pen.globalCompositeOperation = "destination-out";
    pen.strokeStyle = "#000";
    pen.stroke();
    pen.globalCompositeOperation = "source-over";
    pen.strokeStyle = css(body.colour, 0.55 * fresh);
    pen.stroke();
  }

  drawBody(pen, body) {
    if (!body.visible) return;
    pen.beginPath();
    if (Number.isFinite(body.heading)) {
      const side = Math.acos(1 / PLANE.nose);
      const front = -body.heading;
      const tip = PLANE.nose * body.radius;
      pen.moveTo(body.x + tip * Math.cos(front), body.y + tip * Math.sin(front));
      pen.arc(body.x, body.y, body.radius, front + side, front - side);
    } else {
      pen.arc(body.x, body.y, body.radius, 0, 2 * Math.PI);
    }
    pen.closePath();
    pen.lineJoin = "round";
    pen.strokeStyle = css(this.ground, 0.9);
    pen.lineWidth = 3;
    pen.stroke();
    pen.fillStyle = css(body.colour);
    pen.fill();
  }

  drawCross(pen, body) {
    const left = body.visible ? 0 : 1 - body.gone / PLANE.crossSteps;
    if (!(left > 0)) return;
    const arm = Math.max(5, body.radius);
    pen.beginPath();
    for (const side of [1, -1]) {
      pen.moveTo(body.x - arm, body.y - side * arm);
      pen.lineTo(body.x + arm, body.y + side * arm);
    }
    pen.lineCap = "round";
    pen.lineWidth = 2.5;
    pen.strokeStyle = css(body.colour, left);
    pen.stroke();
  }

  destroy() {
    this.canvas.remove();
  }
}
