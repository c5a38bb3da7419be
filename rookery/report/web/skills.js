// Skills: trajectories of each skill in a separate colour; a click plays an episode.

function skillsSection(run, player) {
  const { skills } = run;
  const beside = player ? playerFrame(run, player, "Episode of a skill") : noEpisodes(run);
  if (skills.missing) return section("skills", "Skills", el("p", { class: "note" }, skills.missing), el("div", { class: "grid" }, beside));
  return section("skills", "Skills", el("div", { class: "grid" }, trajectoriesChart(run, player), beside));
}

function trajectoriesChart(run, player) {
  const { trajectories, names, ends, equal } = run.skills;
  const kinds = [...new Set(trajectories.map(({ skill }) => skill))];
  const [[left, low], [right, high]] = ends;
  const option = (colours) => {
    const shades = groupColours(kinds.length, colours);
    const colour = (skill) => shades[kinds.indexOf(skill)];
    const paths = trajectories.map(({ skill, points }, index) => trajectoryLine(skill, points, index, colour(skill)));
    const last = trajectories.map(({ skill, points }) => ({ value: [...points.data.slice(-2)], name: `skill ${skill}`, skill, itemStyle: { color: colour(skill), borderColor: colours.card, borderWidth: 1 } }));
    return {
      xAxis: baseAxis(colours, names[0], { min: left, max: right, scale: false }),
      yAxis: sideAxis(colours, names[1], { min: low, max: high, scale: false }),
      series: [...paths, { type: "scatter", data: last, symbolSize: 9, z: 5 }],
      tooltip: { ...basics(colours).tooltip, trigger: "item", formatter: (point) => el("span", {}, point.name || point.seriesName) },
      grid: { ...basics(colours).grid, bottom: 34, right: 20 },
    };
  };
  const ready = (drawn, canvas) =>
    drawn.on("click", (point) => {
      const skill = point.data.skill ?? trajectories[Number(point.seriesId)]?.skill;
      canvas.dataset.clicked = skill;
      if (player) player.show("skill", skill);
    });
  const chips = skillChips(kinds, player);
  const csv = () => trajectoryColumns(trajectories, names);
  const height = (width) => (equal ? Math.min(560, Math.max(260, ((width - 60) * (high - low)) / (right - left) + 60)) : 380);
  const figure = chart({ title: "Trajectories of each skill", name: "skills", height, option, ready, csv, note: player ? "Click a line, its end or a button to play an episode of the skill." : null });
  figure.append(chips);
  return figure;
}

function trajectoryLine(skill, { shape, data }, index, colour) {
  const points = range(shape[0]).map((i) => [data[2 * i], data[2 * i + 1]]);
  return { type: "line", id: String(index), name: `skill ${skill}`, data: points, showSymbol: false, triggerLineEvent: true, color: colour, lineStyle: { width: 1.5, color: colour, opacity: 0.75 }, emphasis: { focus: "none", lineStyle: { width: 3 } } };
}

/** A button for every skill, in its colour. */
function skillChips(kinds, player) {
  const shades = groupColours(kinds.length);
  const chip = (skill, index) => el("button", { type: "button", class: "chip", "data-skill": skill, style: `--chip:${shades[index]}`, onclick: () => player && player.show("skill", skill) }, `skill ${skill}`);
  const chips = kinds.map(chip);
  if (player) player.listen(({ skill }) => chips.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.skill === String(skill)))));
  return el("div", { class: "chips" }, ...chips);
}

function trajectoryColumns(trajectories, names) {
  const columns = { skill: [], episode: [], [names[0]]: [], [names[1]]: [] };
  trajectories.forEach(({ skill, points }, episode) => {
    for (let i = 0; i < points.shape[0]; i++) {
      columns.skill.push(skill);
      columns.episode.push(episode);
      columns[names[0]].push(points.data[2 * i]);
      columns[names[1]].push(points.data[2 * i + 1]);
    }
  });
  return columns;
}
