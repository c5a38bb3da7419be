// Bundles the libraries inside a report, and writes their licences beside them.
const { readFileSync, writeFileSync } = require("node:fs");
const { join } = require("node:path");
const esbuild = require("esbuild");

const HERE = __dirname;
const TARGET = join(HERE, "..", "rookery", "report", "web", "vendor");
const BUNDLES = {
  charts: {
    global: "Charts",
    parts: { echarts: ["LICENSE", "NOTICE", "licenses/LICENSE-d3"], zrender: ["LICENSE"], tslib: ["LICENSE.txt"] },
  },
  bodies: { global: "Three", parts: { three: ["LICENSE"] } },
};

const read = (name, file) => readFileSync(join(HERE, "node_modules", name, file), "utf8").trim();

function about(name) {
  const { version, license } = JSON.parse(read(name, "package.json"));
  return `${name} ${version} (${license})`;
}

function build(name) {
  const { global, parts } = BUNDLES[name];
  const banner = `/*! ${Object.keys(parts).map(about).join(", ")}; texts: rookery/report/web/vendor/LICENSES.txt */`;
  const outfile = join(TARGET, `${name}.min.js`);
  esbuild.buildSync({
    entryPoints: [join(HERE, `${name}.entry.js`)],
    outfile,
    bundle: true,
    minify: true,
    format: "iife",
    globalName: global,
    target: "es2022",
    charset: "ascii",
    legalComments: "none",
    define: { "process.env.NODE_ENV": '"production"' },
    banner: { js: banner },
  });
  // The page puts a bundle between script tags, where these would end it or hide it.
  const unsafe = /<\/script|<!--|[^\x00-\x7f]/i.exec(readFileSync(outfile, "utf8"));
  if (unsafe) throw new Error(`${outfile} holds ${JSON.stringify(unsafe[0])} and cannot stand in a page; escape it.`);
}

function licences(name) {
  const texts = ([part, files]) => files.map((file) => `${name}.min.js holds ${about(part)}: ${file}\n\n${read(part, file)}`);
  return Object.entries(BUNDLES[name].parts).flatMap(texts);
}

const names = Object.keys(BUNDLES);
names.forEach(build);
const rule = `\n\n${"=".repeat(80)}\n\n`;
writeFileSync(join(TARGET, "LICENSES.txt"), `${names.flatMap(licences).join(rule)}\n`);
