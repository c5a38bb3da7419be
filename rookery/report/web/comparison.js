// Comparison of several runs: interquartile means with their intervals, per environment.

function comparisonSection(comparison) {
  const figures = comparison.environments.flatMap((environment) => [comparisonChart(environment), groupsTable(environment), pairsTable(environment)]);
  const notes = comparison.notes.map((note) => el("p", { class: "lead" }, note[0].toUpperCase() + note.slice(1)));
  return section("comparison", "Comparison", ...notes, el("div", { class: "grid" }, ...figures.filter(Boolean)));
}

function comparisonChart(environment) {
  const { groups, names } = environment;
  const option = (colours) => {
    const shades = groupColours(names.length, colours); // a group has one colour in all environments
    const series = groups.flatMap(({ name, steps: xs, curve }) => [
      band(name, xs.data, curve.low.data, curve.high.data, shades[names.indexOf(name)]),
      line(name, xs.data, curve.value.data, shades[names.indexOf(name)]),
    ]);
    return {
      xAxis: baseAxis(colours, "environment steps", { format: steps, scale: false, min: 0 }),
      yAxis: sideAxis(colours, environment.score),
      series,
      legend: { ...legend(colours, groups.map(({ name }) => name)), left: 60, top: 0, right: 8 },
      tooltip: { ...basics(colours).tooltip, formatter: axisTooltip((value) => `${steps(value)} steps`) },
      grid: { ...basics(colours).grid, top: 56, bottom: 30 },
    };
  };
  const csv = () => {
    const columns = { group: [], env_steps: [], iqm: [], low: [], high: [] };
    for (const { name, steps: xs, curve } of groups) {
      xs.data.forEach((x, i) => [["group", name], ["env_steps", x], ["iqm", curve.value.data[i]], ["low", curve.low.data[i]], ["high", curve.high.data[i]]].forEach(([column, value]) => columns[column].push(value)));
    }
    return columns;
  };
  return chart({ title: environment.name, name: "comparison", wide: true, height: 360, option, csv, note: "Interquartile mean over runs and its 95 % bootstrap interval, which is not defined for a single run." });
}

function groupsTable({ name, groups, budget }) {
  const cell = ({ value, low, high }) => (low === null ? written(value) : `${written(value)} (${written(low)} to ${written(high)})`);
  const ranked = groups.toSorted((a, b) => b.iqm.value - a.iqm.value);
  const rows = ranked.map((group) => [group.chosen ? `${group.name}, ${group.chosen}` : group.name, String(group.runs.length), cell(group.iqm), cell(group.median), cell(group.gap), String(group.diverged)]);
  const columns = ["group", "runs", "IQM", "median", "optimality gap", "diverged"].map((label, index) => ({ label, numeric: index > 0 }));
  const csv = () => ({ group: ranked.map((g) => g.name), runs: ranked.map((g) => g.runs.join(" ")), iqm: ranked.map((g) => g.iqm.value), low: ranked.map((g) => g.iqm.low), high: ranked.map((g) => g.iqm.high) });
  return frame({ title: `At ${steps(budget)} environment steps of ${name}`, name: "groups", csv }, table(columns, rows));
}

function pairsTable({ pairs }) {
  if (!pairs.length) return null;
  const rows = pairs.map(({ first, second, value, low, high, clear, few }) => [first, second, written(value), few || `${low.toFixed(2)} to ${high.toFixed(2)}${clear ? " *" : ""}`]);
  const columns = [{ label: "X" }, { label: "Y" }, { label: "P(X > Y)", numeric: true }, { label: "95 % interval" }];
  const csv = () => ({ x: pairs.map((p) => p.first), y: pairs.map((p) => p.second), probability: pairs.map((p) => p.value), low: pairs.map((p) => p.low), high: pairs.map((p) => p.high) });
  return frame({ title: "Probability of improvement", name: "pairs", csv, note: pairs.some(({ clear }) => clear) ? "* the interval excludes 0.5, with enough runs" : null }, table(columns, rows));
}
