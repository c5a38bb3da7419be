// Charts with axes: their style in either theme, and lazy drawing.

const SMALL_SCREEN = 700; // pixels
const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];

/** The colours of the current theme. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const named = Object.fromEntries(["ink", "quiet", "paper", "line", "accent", "card"].map((name) => [name, read(name)]));
  const numbered = (name, count) => range(count).map((index) => read(`${name}-${index}`));
  return { ...named, series: numbered("series", 8), ranks: numbered("rank", 3), still: matchMedia("(prefers-reduced-motion: reduce)").matches };
}

/** The colour at a share in [0, 1] of a scale; the default is perceptually uniform. */
function shade(share, scale = VIRIDIS) {
  const place = Math.max(0, Math.min(1, share)) * (scale.length - 1);
  const first = Math.min(Math.floor(place), scale.length - 2);
  const mix = (i) => {
    const [from, to] = [scale[first], scale[first + 1]].map((colour) => parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16));
    return Math.round(from + (place - first) * (to - from));
  };
  return `rgb(${mix(0)},${mix(1)},${mix(2)})`;
}

/** Colours of groups: a palette safe for colour-blind readers if they are few, else evenly spaced shades. */
function groupColours(count, colours = theme()) {
  if (count <= colours.series.length) return colours.series.slice(0, count);
  return range(count).map((index) => shade(0.08 + (0.84 * index) / (count - 1)));
}

/**
 * A chart in a frame, drawn when it first becomes visible, and redrawn when theme or size change.
 *
 * @param {object} about - as for `frame`; `height` in pixels or by width, `option(colours, width)` returns ECharts' option,
 *   `ready(chart)` is called once
 */
function chart(about) {
  const canvas = el("div", { class: "chart", role: "img", "aria-label": about.label || about.title });
  const figure = frame(about, canvas);
  const { signal } = scopeController;
  let drawn = null;
  const height = () => (typeof about.height === "function" ? about.height(canvas.clientWidth) : about.height || 280);
  const draw = () => {
    if (!drawn) return;
    canvas.style.height = `${height()}px`;
    drawn.resize();
    const colours = theme();
    drawn.setOption({ ...basics(colours), ...about.option(colours, canvas.clientWidth) }, { notMerge: true });
    canvas.dataset.drawn = "true";
  };
  canvas.style.height = `${about.height && typeof about.height !== "function" ? about.height : 280}px`;
  const begin = () => {
    canvas.style.height = `${height()}px`;
    drawn = Charts.init(canvas, null, { renderer: "canvas" });
    if (about.ready) about.ready(drawn, canvas);
    draw();
    onTheme(draw, signal);
    let width = canvas.clientWidth;
    const sized = new ResizeObserver(() => {
      if (canvas.clientWidth !== width && canvas.clientWidth > 0) draw();
      width = canvas.clientWidth;
    });
    sized.observe(canvas);
    signal.addEventListener("abort", () => {
      sized.disconnect();
      drawn.dispose();
      drawn = null;
    });
  };
  whenSeen(canvas, begin);
  figure.redraw = draw;
  return figure;
}

/** Calls `act` once, when an element comes near the viewport. */
function whenSeen(element, act) {
  const watcher = new IntersectionObserver(
    ([entry]) => {
      if (!entry.isIntersecting) return;
      watcher.disconnect();
      act();
    },
    { rootMargin: "300px" },
  );
  watcher.observe(element);
}

function basics(colours) {
  return {
    animation: false,
    textStyle: { fontFamily: "inherit", color: colours.ink },
    grid: { left: 8, right: 16, top: 34, bottom: 8, containLabel: true },
    tooltip: {
      trigger: "axis",
      confine: true,
      backgroundColor: colours.card,
      borderColor: colours.line,
      textStyle: { color: colours.ink, fontSize: 12 },
      axisPointer: { lineStyle: { color: colours.quiet } },
    },
  };
}

/** A value axis; `more` overrides the defaults, and has `ticks` if they are not ECharts' own. */
function axis(colours, name, more = {}) {
  const { format = written, ticks, ...rest } = more;
  return {
    type: "value",
    scale: true,
    name,
    nameTextStyle: { color: colours.quiet, fontSize: 11 },
    axisLine: { show: false },
    axisTick: { show: false, customValues: ticks }, // those of the grid's lines, too
    axisLabel: { color: colours.quiet, fontSize: 11, hideOverlap: true, formatter: format, customValues: ticks },
    splitLine: { lineStyle: { color: colours.line } },
    ...rest,
  };
}

/** The horizontal axis, with its name below the middle. */
function baseAxis(colours, name, more = {}) {
  const look = { nameLocation: "middle", nameGap: 26, splitLine: { show: false }, axisLine: { show: true, onZero: false, lineStyle: { color: colours.line } } };
  return axis(colours, name, { ...look, ...more });
}

/** The vertical axis, with its name above it. */
function sideAxis(colours, name, more = {}) {
  return axis(colours, name, { nameLocation: "end", nameGap: 12, nameTextStyle: { color: colours.quiet, fontSize: 11, align: "left", padding: [0, 0, 0, -30] }, ...more });
}

function line(name, xs, ys, colour, more = {}) {
  const data = range(xs.length).map((index) => [xs[index], Number.isFinite(ys[index]) ? ys[index] : null]);
  return { type: "line", name, data, showSymbol: xs.length === 1, symbolSize: 6, color: colour, lineStyle: { width: 2, color: colour }, emphasis: { disabled: true }, sampling: "lttb", ...more };
}

/** The area between two curves. */
function band(name, xs, lower, upper, colour) {
  const known = range(xs.length).filter((index) => Number.isFinite(lower[index]) && Number.isFinite(upper[index]));
  const draw = (_, api) => {
    const edge = (values, index) => api.coord([xs[index], values[index]]);
    const points = [...known.map((index) => edge(upper, index)), ...known.toReversed().map((index) => edge(lower, index))];
    return { type: "polygon", shape: { points }, style: { fill: colour, opacity: 0.18 }, silent: true };
  };
  // Points that are not drawn make the axis cover the range of the band.
  const corners = known.length ? [[xs[known[0]], Math.min(...known.map((i) => lower[i])), Math.max(...known.map((i) => upper[i]))]] : [];
  return { type: "custom", name, data: corners, renderItem: draw, encode: { x: 0, y: [1, 2] }, clip: true, silent: true, tooltip: { show: false }, z: 1, color: colour };
}

/** A tooltip of an axis: its head, then a line per series. */
function axisTooltip(head) {
  return (points) => {
    const shown = points.filter((point) => point.seriesType !== "custom" && point.value[1] !== null);
    const rows = shown.map((point) => el("div", {}, el("span", { class: "dot", style: `background:${point.color}` }), `${point.seriesName} `, el("b", {}, written(point.value[1]))));
    return el("div", {}, el("div", { class: "tip-head" }, head(points[0].value[0], points[0].dataIndex)), ...rows);
  };
}

function legend(colours, names) {
  return { show: names.length > 1, data: names, right: 8, top: 0, itemWidth: 14, itemHeight: 8, textStyle: { color: colours.ink, fontSize: 11 }, inactiveColor: colours.line, type: "plain" };
}
