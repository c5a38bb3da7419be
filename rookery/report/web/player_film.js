// An episode that its own suite drew as a .gif: played frame by frame where the browser can decode it.

class FilmView {
  constructor(stage, data) {
    this.source = data.film;
    this.stage = stage;
    this.aspect = null;
    this.frames = [];
    this.canvas = document.createElement("img");
    this.canvas.src = this.source;
    this.canvas.alt = "";
    stage.append(this.canvas);
    this.ready = this.decode().catch(() => false);
  }

  /** Whether the film can be stopped; else it stays the browser's own moving picture, which cannot. */
  async decode() {
    if (typeof ImageDecoder === "undefined") return false;
    const bytes = Uint8Array.from(atob(this.source.slice(this.source.indexOf(",") + 1)), (sign) => sign.charCodeAt(0));
    const decoder = new ImageDecoder({ data: bytes, type: "image/gif" });
    await decoder.completed;
    await decoder.tracks.ready;
    this.seconds = 0;
    for (let index = 0; index < decoder.tracks.selectedTrack.frameCount && !this.over; index++) {
      const { image } = await decoder.decode({ frameIndex: index });
      this.seconds += (image.duration || 50000) / 1e6;
      this.frames.push(await createImageBitmap(image));
      image.close();
    }
    decoder.close();
    return !this.over && this.turnIntoCanvas();
  }

  turnIntoCanvas() {
    const canvas = document.createElement("canvas");
    canvas.width = this.frames[0].width;
    canvas.height = this.frames[0].height;
    this.canvas.replaceWith(canvas);
    this.canvas = canvas;
    this.aspect = canvas.width / canvas.height;
    return true;
  }

  show(episode) {
    this.episode = episode;
  }

  draw(time) {
    if (!this.frames.length || !this.canvas.getContext) return;
    const last = this.frames.length - 1;
    const frame = this.episode.steps ? Math.round((time / this.episode.steps) * last) : 0;
    this.canvas.getContext("2d").drawImage(this.frames[Math.min(last, frame)], 0, 0);
  }

  destroy() {
    this.over = true;
    this.frames.forEach((frame) => frame.close());
    this.canvas.remove();
  }
}
