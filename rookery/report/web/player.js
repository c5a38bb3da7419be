// Player of recorded episodes; createPlayer(host, data) creates one in an element.

const PLAYER = {
  pace: 15, // steps per second in an environment without a physical time step
  longest: 15, // seconds, the longest duration of an episode of such an environment at speed 1
  rest: 1.2, // seconds between the end of an episode and its repetition
};

const PLAYER_VIEWS = { plane: () => PlaneView, bodies: () => BodiesView, film: () => FilmView };

/**
 * Plays recorded episodes inside an element.
 *
 * A click on the picture, or the space bar, plays and pauses; arrow keys step. The player stops while it is not visible,
 * and does not start automatically if the system is set to reduced motion. The host reports the state in `dataset.frame`
 * (time in steps), `dataset.playing` and `dataset.label`; the player handles the window's "themechange" events, and the
 * host sends "episodechange" events with `detail.index` and `detail.episode`.
 *
 * @param {HTMLElement} host - its content is replaced
 * @param {object} data - {kind, secondsPerStep, scenery | shapes, names, episodes, arrays, film}; `arrays` has
 *   {shape, data} of step [N, F], frames [N], position [N, F, B, 2 | 3], rotation [N, F, B, 4] as w, x, y, z, or
 *   heading [N, F, B] in rad, visible [N, F, B], reward [N, F, names]
 * @returns {Player} show(index), find(field, value), nearest(descriptor), play(), pause(), seek(step), destroy(),
 *   playing, index, time
 */
function createPlayer(host, data) {
  if (!data.episodes.length) throw new Error("a player needs at least one episode, got none; record some first.");
  return new Player(host, data);
}

class Player {
  constructor(host, data) {
    Object.assign(this, { host, data, time: 0, speed: 1, rested: 0, inSight: false, pending: 0 });
    this.wanted = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.undo = [];
    this.build();
    this.listen();
    // Browsers limit the number of WebGL contexts: one is created only when the player becomes visible.
    if (data.kind !== "bodies") this.makeView();
    this.show(0);
  }

  build() {
    const actions = {
      toggle: () => this.toggle(),
      seek: (step) => this.scrub(step),
      speed: (factor) => (this.speed = factor),
      turn: (by) => this.show((this.index + by + this.data.episodes.length) % this.data.episodes.length),
      reset: () => this.resetView(),
    };
    this.root = playerElement("div", "player");
    this.root.dataset.kind = this.data.kind;
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "group");
    this.stage = playerElement("div", "player-stage");
    this.stage.setAttribute("role", "img");
    this.controls = new PlayerControls(actions);
    this.controls.reset.hidden = this.data.kind !== "bodies";
    this.root.append(this.stage, this.controls.root);
    this.host.replaceChildren(this.root);
    this.colours = pageColours();
  }

  /** Creates the view, or shows a message if the browser cannot draw it. */
  makeView() {
    try {
      this.view = new (PLAYER_VIEWS[this.data.kind]())(this.stage, this.data);
    } catch (error) {
      this.view = null;
      this.refuse(error);
      return;
    }
    this.view.onchange = () => this.request();
    if (this.view.ready) this.view.ready.then((playable) => this.filmReady(playable));
    this.fit();
  }

  firstSeen() {
    this.makeView();
    if (!this.view) return this.seek(this.episode.steps);
    this.view.show(this.episode);
    this.resize();
  }

  refuse(error) {
    this.refused = true;
    const why = `This episode cannot be shown: ${error.message}. The returns below are those of the episode.`;
    this.stage.replaceChildren(playerElement("p", "player-refusal", why));
    this.stage.dataset.refused = "true";
    this.controls.first.hidden = true;
    this.wanted = false;
  }

  filmReady(playable) {
    this.controls.first.hidden = !playable;
    this.fit();
    this.request();
  }

  fit() {
    if (this.view && this.view.aspect) this.stage.style.setProperty("--aspect", this.view.aspect);
    if (this.view && this.view.width) this.stage.style.maxWidth = `${this.view.width}px`;
  }

  listen() {
    this.on(this.root, "keydown", (event) => this.pressed(event));
    this.on(this.stage, "pointerdown", (event) => (this.touched = [event.clientX, event.clientY]));
    this.on(this.stage, "click", (event) => this.clicked(event));
    // The wheel scrolls the page until the player has the focus.
    const wheel = (event) => !event.ctrlKey && !this.root.contains(document.activeElement) && event.stopPropagation();
    this.on(this.stage, "wheel", wheel, { capture: true, passive: true });
    this.on(window, "themechange", () => this.recolour());
    this.on(document, "visibilitychange", () => this.refresh());
    const intersection = new IntersectionObserver(([entry]) => {
      this.inSight = entry.isIntersecting;
      if (this.inSight && !this.view && !this.refused) this.firstSeen();
      this.refresh();
    });
    const sized = new ResizeObserver(() => this.resize());
    intersection.observe(this.stage);
    sized.observe(this.stage);
    this.undo.push(() => intersection.disconnect(), () => sized.disconnect());
  }

  on(target, name, act, options) {
    target.addEventListener(name, act, options);
    this.undo.push(() => target.removeEventListener(name, act, options));
  }

  /** Whether the player plays, or will play once it is visible. */
  get playing() {
    return this.wanted;
  }

  /** Shows an episode from its start. */
  show(index) {
    this.index = Math.max(0, Math.min(this.data.episodes.length - 1, index));
    this.episode = new PlayerEpisode(this.data, this.index);
    this.time = this.rested = 0;
    if (this.view) this.view.show(this.episode);
    if (this.refused) this.time = this.episode.steps;
    this.controls.showEpisode(this.episode, this.data.episodes.length);
    this.stage.setAttribute("aria-label", `${this.episode.about.label}, an episode of ${this.episode.steps} steps`);
    this.root.setAttribute("aria-label", `Player: ${this.episode.about.label}`);
    this.host.dataset.label = this.episode.about.label;
    const detail = { index: this.index, episode: this.episode.about };
    this.host.dispatchEvent(new CustomEvent("episodechange", { detail }));
    this.refresh();
  }

  /** Index of the episode with this `cell`, `skill` or `member`; -1 where there is none. */
  find(field, value) {
    return this.data.episodes.findIndex((episode) => episode[field] === value);
  }

  /** Index of the episode whose descriptor is nearest; -1 where none has one. */
  nearest(descriptor) {
    const away = ({ descriptor: other }) =>
      other ? Math.hypot(...descriptor.map((part, axis) => part - other[axis])) : Infinity;
    const distances = this.data.episodes.map(away);
    const least = Math.min(...distances);
    return Number.isFinite(least) ? distances.indexOf(least) : -1;
  }

  play() {
    this.setPlaying(true);
  }

  pause() {
    this.setPlaying(false);
  }

  toggle() {
    this.setPlaying(!this.wanted);
  }

  setPlaying(wanted) {
    this.wanted = wanted;
    this.refresh();
  }

  seek(step) {
    this.time = Math.max(0, Math.min(this.episode.steps, step));
    this.rested = 0;
    this.refresh();
  }

  scrub(step) {
    this.pause();
    this.seek(step);
  }

  pressed(event) {
    const { target, key } = event;
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.ctrlKey || event.altKey || event.metaKey || target.matches("select")) return;
    if (key === " " && !target.matches("button")) this.toggle();
    else if (key in steps) this.scrub(Math.round(this.time) + steps[key]);
    else if (key === "Home") this.scrub(0);
    else if (key === "End") this.scrub(this.episode.steps);
    else return;
    event.preventDefault();
  }

  /** Handles a click; a drag, which turns the view, is ignored. */
  clicked(event) {
    const [x, y] = this.touched || [event.clientX, event.clientY];
    if (Math.hypot(event.clientX - x, event.clientY - y) < 5 && !this.controls.first.hidden) this.toggle();
  }

  resetView() {
    if (!this.view || !this.view.resetView) return;
    this.view.resetView();
    this.request();
  }

  recolour() {
    this.colours = pageColours();
    if (this.view && this.view.recolour) this.view.recolour(this.colours);
    this.refresh();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.stage;
    if (!this.view || !this.view.resize || !width || !height) return;
    this.view.resize(width, height, window.devicePixelRatio || 1);
    this.sized = true;
    this.render();
  }

  /** Steps per second of wall-clock time. */
  get pace() {
    const seconds = this.view && this.view.seconds;
    if (seconds) return this.speed * (this.episode.steps / seconds);
    const { secondsPerStep } = this.data;
    return this.speed * (secondsPerStep ? 1 / secondsPerStep : Math.max(PLAYER.pace, this.episode.steps / PLAYER.longest));
  }

  get moves() {
    return this.wanted && this.inSight && !document.hidden && this.episode.steps > 0;
  }

  refresh() {
    this.report();
    this.request();
  }

  /** Requests a redraw, which is repeated while the player plays. */
  request() {
    if (this.pending || this.over) return;
    this.pending = requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    this.pending = 0;
    if (this.moves) this.advance(Math.min(0.1, (now - (this.last ?? now)) / 1000));
    this.last = this.moves ? now : null;
    if (this.inSight) this.render();
    if (this.moves) this.request();
  }

  advance(seconds) {
    if (this.time < this.episode.steps) {
      this.time = Math.min(this.episode.steps, this.time + seconds * this.pace);
    } else if ((this.rested += seconds) >= PLAYER.rest) {
      this.time = this.rested = 0;
    }
    this.report();
  }

  report() {
    const kinds = this.data.scenery ? kindColours(this.data.scenery.bodies, this.colours.series) : new Map();
    this.controls.showTime(this.episode, this.time, this.data.secondsPerStep, kinds);
    this.controls.showPlaying(this.wanted);
    this.host.dataset.playing = String(this.moves);
    this.host.dataset.frame = String(Math.round(this.time * 100) / 100);
  }

  render() {
    if (this.view && (this.sized || !this.view.resize)) this.view.draw(this.time);
  }

  /** Removes the player and frees its graphics memory. */
  destroy() {
    this.over = true;
    cancelAnimationFrame(this.pending);
    this.undo.forEach((act) => act());
    if (this.view) this.view.destroy();
    this.host.replaceChildren();
    for (const name of ["frame", "playing", "label"]) delete this.host.dataset[name];
  }
}
