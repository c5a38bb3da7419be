// One recorded episode: positions and cumulative returns at a time.

const LISTED = 6; // returns that are shown by name; of more, the mean per kind of body is shown

class PlayerEpisode {
  /**
   * @param {object} data - as for createPlayer
   * @param {number} index - index of the episode
   */
  constructor(data, index) {
    this.data = data;
    this.index = index;
    this.about = data.episodes[index];
    this.arrays = data.arrays || {};
    const frames = this.arrays.frames;
    this.frames = frames ? Math.max(1, frames.data[index]) : 1;
    this.steps = this.arrays.step ? this.stepAt(this.frames - 1) : this.about.steps || 0;
  }

  /** Offset of a frame's row in an array's data. */
  offset(name, frame) {
    const shape = this.arrays[name].shape;
    const size = shape.slice(2).reduce((product, length) => product * length, 1);
    return (this.index * shape[1] + frame) * size;
  }

  stepAt(frame) {
    return this.arrays.step.data[this.offset("step", frame)];
  }

  /** The last frame at or before a time in steps. */
  frameAt(time) {
    if (!this.arrays.step) return 0;
    let low = 0;
    let high = this.frames - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.stepAt(middle) <= time) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The two frames around a time in steps, and the interpolation weight of the second in [0, 1]. */
  moment(time) {
    const frame = this.frameAt(time);
    const next = Math.min(frame + 1, this.frames - 1);
    const passed = next > frame ? time - this.stepAt(frame) : 0;
    // At a frame, the next one must not be used even with weight 0: it may be NaN.
    if (passed <= 0) return { frame, next: frame, mix: 0 };
    return { frame, next, mix: Math.min(1, passed / (this.stepAt(next) - this.stepAt(frame))) };
  }

  /** Position of a body or link at a moment, an array of the last axis's size. */
  position(body, { frame, next, mix }) {
    const { data, shape } = this.arrays.position;
    const size = shape[3];
    const from = this.offset("position", frame) + body * size;
    const to = this.offset("position", next) + body * size;
    const place = [];
    for (let axis = 0; axis < size; axis++) place.push(data[from + axis] * (1 - mix) + data[to + axis] * mix);
    return place;
  }

  /** Heading of a body in rad, interpolated along the shorter arc; NaN for a body without one. */
  heading(body, { frame, next, mix }) {
    if (!this.arrays.heading) return NaN;
    const data = this.arrays.heading.data;
    const from = data[this.offset("heading", frame) + body];
    const turn = data[this.offset("heading", next) + body] - from;
    return from + Math.atan2(Math.sin(turn), Math.cos(turn)) * mix;
  }

  /** Rotation of a link as a unit quaternion [w, x, y, z], interpolated along the shorter arc. */
  rotation(link, { frame, next, mix }) {
    const data = this.arrays.rotation.data;
    const from = this.offset("rotation", frame) + link * 4;
    const to = this.offset("rotation", next) + link * 4;
    let along = 0;
    for (let axis = 0; axis < 4; axis++) along += data[from + axis] * data[to + axis];
    const side = along < 0 ? -mix : mix;
    const turned = [0, 1, 2, 3].map((axis) => data[from + axis] * (1 - mix) + data[to + axis] * side);
    const length = Math.hypot(...turned) || 1;
    return turned.map((part) => part / length);
  }

  visible(body, frame) {
    return !this.arrays.visible || this.arrays.visible.data[this.offset("visible", frame) + body] > 0;
  }

  /** Steps since a body became invisible, at a time in steps; 0 while it is visible. */
  gone(body, time) {
    let frame = this.frameAt(time);
    if (this.visible(body, frame)) return 0;
    while (frame > 0 && !this.visible(body, frame - 1)) frame -= 1;
    return frame === 0 ? Infinity : time - this.stepAt(frame);
  }

  /** Cumulative returns at a time: [{name, value, kind}], with the kind of the body that gets the return, or null. */
  returned(time) {
    if (!this.arrays.reward) return this.totals();
    const at = this.offset("reward", this.frameAt(time));
    const values = this.data.names.map((_, index) => this.arrays.reward.data[at + index]);
    const digits = this.digits();
    const format = ({ name, rows, kind }) => {
      const mean = rows.reduce((sum, row) => sum + values[row], 0) / rows.length;
      return { name, kind, value: fixed(mean, rows.length > 1 ? 1 : digits) };
    };
    return returnGroups(this.data).map(format);
  }

  /** Returns of the whole episode; a film has no others. */
  totals() {
    const entries = Object.entries(this.about.returns || {}).slice(0, LISTED);
    return entries.map(([name, value]) => ({ name: `total ${name}`, kind: null, value: fixed(value, Number.isInteger(value) ? 0 : 1) }));
  }

  /** Number of decimals: 0 if all returns of the episode are integers. */
  digits() {
    const from = this.offset("reward", 0);
    const to = this.offset("reward", this.frames - 1) + this.data.names.length;
    this.places ??= this.arrays.reward.data.subarray(from, to).every(Number.isInteger) ? 0 : 1;
    return this.places;
  }
}

/** The shown returns, each the mean of some rows: one per name, or per kind of body if there are many. */
function returnGroups(data) {
  const bodies = data.scenery ? data.scenery.bodies : [];
  const alone = data.names.map((name, row) => ({ name, rows: [row], kind: null }));
  if (bodies.length !== data.names.length) return alone.slice(0, LISTED);
  if (bodies.length <= LISTED) return alone.map((group, row) => ({ ...group, kind: bodies[row] }));
  return [...new Set(bodies)].map((kind) => {
    const rows = bodies.flatMap((body, row) => (body === kind ? [row] : []));
    return { name: `${kind} × ${rows.length}`, rows, kind };
  });
}

const FALLBACKS = {
  "--ink": "#1b3a4b",
  "--quiet": "#8fa7b3",
  "--paper": "#ffffff",
  "--line": "#d9e1e5",
  "--accent": "#00798c",
};
const FALLBACK_SERIES = ["#d1495b", "#00798c", "#edae49", "#6a4c93", "#5b8c5a"];
FALLBACK_SERIES.push("#8c5e3c", "#3d5a9e", "#e07a9b", "#77808a", "#9bb83c");

/** The current colours of the page, each [red, green, blue] in 0..255, from any CSS notation. */
function pageColours() {
  const style = getComputedStyle(document.documentElement);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const read = (name, fallback) => {
    context.fillStyle = fallback;
    context.fillStyle = style.getPropertyValue(name).trim() || fallback;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const named = Object.entries(FALLBACKS).map(([name, fallback]) => [name.slice(2), read(name, fallback)]);
  const series = FALLBACK_SERIES.map((fallback, index) => read(`--series-${index}`, fallback));
  return { ...Object.fromEntries(named), series };
}

/** Text of a return with a number of decimals; one that rounds to 0 has no sign. */
function fixed(value, decimals) {
  if (!Number.isFinite(value)) return "not finite";
  const text = value.toFixed(decimals);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

/** A colour in CSS notation. */
function css([red, green, blue], alpha = 1) {
  return `rgb(${red} ${green} ${blue} / ${alpha})`;
}

/** The interpolation between two colours. */
function blend(from, to, mix) {
  return from.map((part, index) => Math.round(part * (1 - mix) + to[index] * mix));
}

/** Kind of body -> its colour; bodies of one kind share one. */
function kindColours(bodies, series) {
  return new Map([...new Set(bodies)].map((kind, index) => [kind, series[index % series.length]]));
}
