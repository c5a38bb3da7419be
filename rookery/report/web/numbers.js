// Decoding of the page's arrays, and formatting of numbers.

const ARRAY_TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, i2: Int16Array, u1: Uint8Array };
const NAN_CODE = -32768; // NaN in int16 arrays

/** The page's data with all packed arrays decoded to {shape, data}. */
function unpack(value) {
  if (Array.isArray(value)) return value.map(unpack);
  if (value === null || typeof value !== "object") return value;
  if ("base64" in value) return unpackArray(value);
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, unpack(part)]));
}

function unpackArray({ type, shape, base64, scale, offset }) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const data = new ARRAY_TYPES[type](bytes.buffer);
  if (scale === undefined) return { shape, data };
  return { shape, data: Float32Array.from(data, (step) => (step === NAN_CODE ? NaN : offset + scale * step)) };
}

/** Formats with four significant digits and thousands separators. */
function written(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e12) return Math.round(value).toLocaleString("en");
  if (size !== 0 && (size < 1e-3 || size >= 1e12)) return scientific(value);
  return String(Number(value.toPrecision(4))).replace("-", "\u2212");
}

function scientific(value) {
  const [mantissa, exponent] = value.toExponential(2).split("e");
  return `${Number(mantissa)}e${Number(exponent)}`.replaceAll("-", "\u2212");
}

/** Short text of a number of steps: 950, 20k, 1.5M, 2B. */
function steps(value) {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + unit;
  }
  return String(Number(value.toPrecision(3)));
}

/** Short text of a duration: 45 s, 12 min, 3.5 h. */
function clock(seconds) {
  if (seconds < 120) return `${Number(seconds.toPrecision(2))} s`;
  return seconds < 7200 ? `${Number((seconds / 60).toPrecision(2))} min` : `${Number((seconds / 3600).toPrecision(3))} h`;
}

function bytes(count) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (count >= size) return `${Number((count / size).toPrecision(3))} ${unit}`;
  }
  return `${count} bytes`;
}

/** [low, high] of the finite numbers, or null. */
function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low && Number.isFinite(value)) low = value;
    if (value > high && Number.isFinite(value)) high = value;
  }
  return low <= high ? [low, high] : null;
}

/** 0, 1, ..., count - 1. */
function range(count) {
  return Array.from({ length: count }, (_, index) => index);
}
