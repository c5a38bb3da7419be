// Controls below the picture: play, scrubber, time, speed, returns, episodes.

// SVG paths of icons of size 20 x 20.
const PLAYER_ICONS = {
  play: "M5 3.2v13.6a.8.8 0 0 0 1.2.7l11-6.8a.8.8 0 0 0 0-1.4l-11-6.8a.8.8 0 0 0-1.2.7z",
  pause: "M4.5 3h4v14h-4zM11.5 3h4v14h-4z",
  previous: "M12.8 4.2a1 1 0 0 1 0 1.4L8.4 10l4.4 4.4a1 1 0 0 1-1.4 1.4L6.3 10.7a1 1 0 0 1 0-1.4l5.1-5.1z",
  next: "M7.2 4.2a1 1 0 0 0 0 1.4l4.4 4.4-4.4 4.4a1 1 0 0 0 1.4 1.4l5.1-5.1a1 1 0 0 0 0-1.4L8.6 4.2z",
  reset: "M10 4a6 6 0 1 1-5.7 4.1l1.9.6A4 4 0 1 0 10 6v1.6a.6.6 0 0 1-1 .4L6.2 5.5a.6.6 0 0 1 0-.9L9 2.1a.6.6 0 0 1 1 .4z",
};
const PLAYER_SPEEDS = [0.5, 1, 2, 4];

function playerElement(name, className, text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

function playerIcon(button, name) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  picture.setAttribute("viewBox", "0 0 20 20");
  picture.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", PLAYER_ICONS[name]);
  picture.append(path);
  button.replaceChildren(picture);
}

function playerButton(icon, label, act) {
  const button = playerElement("button", "player-button");
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.title = label;
  playerIcon(button, icon);
  button.addEventListener("click", act);
  return button;
}

class PlayerControls {
  /** `actions`: toggle(), seek(step), speed(factor), turn(by), reset(). */
  constructor(actions) {
    this.root = playerElement("div", "player-controls");
    this.play = playerButton("play", "Play", actions.toggle);
    this.play.classList.add("player-play");
    this.scrubber = this.makeScrubber(actions);
    this.time = playerElement("span", "player-time");
    this.speed = this.makeSpeed(actions);
    this.reset = playerButton("reset", "Reset the view", actions.reset);
    this.first = playerElement("div", "player-row");
    this.first.append(this.play, this.scrubber, this.time, this.speed, this.reset);
    this.second = playerElement("div", "player-row player-about");
    this.returns = playerElement("div", "player-returns");
    this.second.append(this.makeEpisodes(actions), this.returns);
    this.root.append(this.first, this.second);
  }

  makeScrubber(actions) {
    const scrubber = playerElement("input", "player-scrubber");
    Object.assign(scrubber, { type: "range", min: 0, max: 0, step: "any", value: 0 });
    scrubber.setAttribute("aria-label", "Step of the episode");
    scrubber.addEventListener("input", () => actions.seek(Number(scrubber.value)));
    return scrubber;
  }

  makeSpeed(actions) {
    const speed = playerElement("select", "player-speed");
    speed.setAttribute("aria-label", "Speed");
    for (const factor of PLAYER_SPEEDS) speed.append(new Option(`${factor}×`, factor, factor === 1, factor === 1));
    speed.addEventListener("change", () => actions.speed(Number(speed.value)));
    return speed;
  }

  makeEpisodes(actions) {
    const episodes = playerElement("div", "player-episodes");
    this.previous = playerButton("previous", "Previous episode", () => actions.turn(-1));
    this.next = playerButton("next", "Next episode", () => actions.turn(1));
    this.label = playerElement("span", "player-label");
    this.label.setAttribute("aria-live", "polite");
    this.count = playerElement("span", "player-count");
    episodes.append(this.previous, this.label, this.count, this.next);
    return episodes;
  }

  /** Updates the controls that do not change within an episode. */
  showEpisode(episode, count) {
    this.label.textContent = episode.about.label;
    this.count.textContent = count > 1 ? `${episode.index + 1} of ${count}` : "";
    this.previous.hidden = this.next.hidden = count < 2;
    this.scrubber.max = episode.steps;
    this.chips = null;
  }

  showTime(episode, time, secondsPerStep, kinds) {
    const step = Math.floor(time + 1e-6);
    const seconds = secondsPerStep ? ` · ${(time * secondsPerStep).toFixed(2)} s` : "";
    this.time.textContent = `step ${step} of ${episode.steps}${seconds}`;
    this.scrubber.value = time;
    this.scrubber.setAttribute("aria-valuetext", this.time.textContent);
    this.scrubber.style.setProperty("--played", `${episode.steps ? (100 * time) / episode.steps : 100}%`);
    this.showReturns(episode.returned(time), kinds);
  }

  showReturns(returned, kinds) {
    if (!this.chips) this.makeChips(returned);
    returned.forEach(({ kind, value }, index) => {
      const { dot, number } = this.chips[index];
      if (kind !== null) dot.style.background = css(kinds.get(kind));
      if (number.textContent !== value) number.textContent = value;
    });
  }

  makeChips(returned) {
    this.chips = returned.map(({ name, kind }) => {
      const chip = playerElement("span", "player-return");
      const dot = playerElement("span", "player-dot");
      const number = playerElement("span", "player-number");
      if (kind !== null) chip.append(dot);
      chip.append(playerElement("span", "player-name", name), number);
      return { chip, dot, number };
    });
    this.returns.replaceChildren(...this.chips.map(({ chip }) => chip));
  }

  showPlaying(playing) {
    const label = playing ? "Pause" : "Play";
    if (this.play.title === label) return;
    playerIcon(this.play, playing ? "pause" : "play");
    this.play.setAttribute("aria-label", label);
    this.play.title = label;
  }
}

/**
 * A horizontal swipe turns the view; a vertical one scrolls the page, as needed on phones. Two fingers zoom and pan.
 *
 * The view in `stage` receives touch events only once the direction is known. Returns a function that removes this.
 */
function leaveSwipes(stage) {
  const fingers = new Map();
  let turning = false;
  const down = ({ pointerId, clientX, clientY }) => {
    fingers.set(pointerId, [clientX, clientY]);
    turning = fingers.size > 1;
  };
  const move = (event) => {
    const [x, y] = fingers.get(event.pointerId) || [event.clientX, event.clientY];
    const [across, along] = [Math.abs(event.clientX - x), Math.abs(event.clientY - y)];
    turning ||= across > 8 && across > along;
    if (event.pointerType === "touch" && !turning) event.stopPropagation();
  };
  const up = ({ pointerId }) => fingers.delete(pointerId);
  const acts = Object.entries({ pointerdown: down, pointermove: move, pointerup: up, pointercancel: up });
  acts.forEach(([name, act]) => stage.addEventListener(name, act, true));
  return () => acts.forEach(([name, act]) => stage.removeEventListener(name, act, true));
}
