// An episode rendered by its suite as a .gif; it can be paused if the browser can decode single frames.

class FilmView {
  constructor(stage, data) {
    this.stage = stage;
    this.source = data.film;
    this.aspect = null;
    this.canvas = document.createElement("img");
    this.canvas.src = this.source;
    this.canvas.alt = "";
    stage.append(this.canvas);
    this.ready = this.open().catch(() => false);
  }

  /** Whether the film can be paused; otherwise the browser animates the image. */
  async open() {
    await this.canvas.decode();
    this.aspect = this.canvas.naturalWidth / this.canvas.naturalHeight;
    this.width = Math.max(this.canvas.naturalWidth, 240); // a small film is not blown up, a tiny one keeps its pixels sharp
    if (this.canvas.naturalWidth < this.width) this.stage.style.imageRendering = "pixelated";
    if (typeof ImageDecoder === "undefined") return false;
    const bytes = Uint8Array.from(atob(this.source.slice(this.source.indexOf(",") + 1)), (sign) => sign.charCodeAt(0));
    this.decoder = new ImageDecoder({ data: bytes, type: "image/gif" });
    await Promise.all([this.decoder.completed, this.decoder.tracks.ready]);
    const durations = await this.durations(); // equal frames are stored once, for a longer time
    if (this.over) return false;
    this.starts = durations.map((_, frame) => durations.slice(0, frame).reduce((sum, one) => sum + one, 0));
    this.seconds = this.starts.at(-1) + durations.at(-1);
    this.last = this.seconds - Math.min(...durations); // when the episode's last step is shown
    this.turnIntoCanvas((await this.decoder.decode({ frameIndex: 0 })).image);
    return true;
  }

  /** Seconds of each frame. */
  async durations() {
    const found = [];
    for (let frame = 0; !this.over && frame < this.decoder.tracks.selectedTrack.frameCount; frame++) {
      const { image } = await this.decoder.decode({ frameIndex: frame });
      found.push((image.duration || 50000) / 1e6);
      image.close();
    }
    return found;
  }

  turnIntoCanvas(image) {
    const canvas = document.createElement("canvas");
    canvas.width = image.displayWidth;
    canvas.height = image.displayHeight;
    this.canvas.replaceWith(canvas);
    this.canvas = canvas;
    this.put(image);
  }

  put(image) {
    this.canvas.getContext("2d").drawImage(image, 0, 0);
    image.close();
  }

  show(episode) {
    this.episode = episode;
  }

  draw(time) {
    if (!this.seconds) return;
    const seconds = this.episode.steps ? (time / this.episode.steps) * this.last : 0;
    this.wanted = this.starts.findLastIndex((start) => start <= seconds + 1e-6);
    if (!this.busy) this.catchUp();
  }

  /** Decodes the current frame on demand: all frames of a film would exceed a phone's memory. */
  async catchUp() {
    this.busy = true;
    while (!this.over && this.drawn !== this.wanted) {
      const frame = this.wanted;
      const decoded = await this.decoder.decode({ frameIndex: frame }).catch(() => null);
      if (decoded && !this.over) this.put(decoded.image);
      this.drawn = frame;
    }
    this.busy = false;
  }

  destroy() {
    this.over = true;
    if (this.decoder) this.decoder.close();
    this.canvas.remove();
  }
}
