// 3D view of bodies, drawn with three.js (the bundle's global `Three`): MuJoCo's shapes, z upwards, metres.

const BODIES = {
  angle: 36, // degrees, vertical field of view of the camera
  from: [0.42, -1, 0.38], // initial direction of the camera from the robot: to the right of a robot that moves along x
  above: [0.3, -0.8, 1.1], // the same with walls, over which the camera looks
  near: 1.5, // half of the view's height, in units of the robot's size
  far: 2.6, // the same with walls
  glass: 0.15, // opacity of a wall between the camera and the robot
  calm: 0.4, // seconds over which the camera's path is smoothed
  still: 1.5, // the camera is fixed if the robot travels less than this, in units of its size
  shadow: 2048, // pixels
};

class BodiesView {
  constructor(stage, data) {
    this.data = data;
    this.aspect = null;
    this.stage = stage;
    this.scene = new Three.Scene();
    this.canvas = document.createElement("canvas");
    const context = this.canvas.getContext("webgl2", { antialias: true, alpha: true });
    if (!context) throw new Error("the 3D view needs WebGL, which this browser does not support");
    this.renderer = new Three.WebGLRenderer({ canvas: this.canvas, context, antialias: true, alpha: true });
    stage.append(this.canvas);
    this.renderer.shadowMap.enabled = true;
    this.renderer.shadowMap.type = Three.PCFShadowMap;
    this.addShapes();
    this.pose(new PlayerEpisode(data, 0), { frame: 0, next: 0, mix: 0 });
    this.walls = this.meshes.filter(({ shape }) => shape.link < 0 && shape.kind === "box");
    const box = robotBox(this.links, new Set(this.meshes.filter(isGoal).map(({ mesh }) => mesh)));
    this.size = box.size;
    // Links have their origins at joints: the mean of the origins can be far from the robot's centre.
    this.lift = box.height - this.links.reduce((sum, link) => sum + link.position.z / this.links.length, 0);
    this.addLights();
    this.ground = new BodiesGround(this.scene, data, this.size);
    this.clipWalls();
    this.addCamera();
    this.recolour(pageColours());
  }

  addLights() {
    this.sky = new Three.HemisphereLight(0xffffff, 0xffffff, 1.5);
    this.sun = new Three.DirectionalLight(0xffffff, 2.0);
    this.sun.castShadow = true;
    this.sun.shadow.mapSize.set(BODIES.shadow, BODIES.shadow);
    this.sun.shadow.radius = 5;
    this.sun.shadow.normalBias = 0.01 * this.size;
    const reach = 3.5 * this.size;
    Object.assign(this.sun.shadow.camera, { left: -reach, right: reach, bottom: -reach, top: reach });
    Object.assign(this.sun.shadow.camera, { near: 0.1 * this.size, far: 14 * this.size });
    this.scene.add(this.sky, this.sun, this.sun.target);
  }

  addShapes() {
    const links = this.data.arrays.position.shape[2];
    this.links = Array.from({ length: links }, () => new Three.Group());
    this.fixed = new Three.Group();
    this.meshes = [];
    this.scene.add(this.fixed, ...this.links);
    for (const shape of this.data.shapes) {
      if (isFloor(shape)) continue;
      const mesh = shapeMesh(shape);
      this.meshes.push({ mesh, shape });
      (shape.link < 0 ? this.fixed : this.links[shape.link]).add(mesh);
    }
  }

  /** Clips the parts of walls below the floor, which is slightly translucent. */
  clipWalls() {
    this.renderer.localClippingEnabled = this.walls.length > 0;
    const floor = new Three.Plane(new Three.Vector3(0, 0, 1), -this.ground.height);
    this.walls.forEach(({ mesh }) => (mesh.material.clippingPlanes = [floor]));
    this.sight = new Three.Raycaster();
  }

  addCamera() {
    this.camera = new Three.PerspectiveCamera(BODIES.angle, 1, 0.02 * this.size, 400 * this.size);
    this.camera.up.set(0, 0, 1);
    this.controls = new Three.OrbitControls(this.camera, this.canvas);
    this.controls.enableDamping = true;
    this.controls.maxPolarAngle = Math.PI / 2 - 0.02;
    this.controls.minDistance = 0.5 * this.size;
    this.controls.maxDistance = 60 * this.size;
    this.canvas.style.touchAction = "pan-y";
    this.forgetSwipes = leaveSwipes(this.stage);
    this.controls.addEventListener("change", () => this.onchange && this.onchange());
    this.centre = new Three.Vector3();
  }

  show(episode) {
    this.episode = episode;
    this.path = new BodiesPath(episode, this.data.secondsPerStep, this.size);
    this.ground.trace(this.path);
    this.resetView();
  }

  resetView() {
    this.centre.copy(this.middle(this.time || 0));
    const [near, from] = this.walls.length ? [BODIES.far, BODIES.above] : [BODIES.near, BODIES.from];
    const distance = (near * this.size) / Math.tan((BODIES.angle * Math.PI) / 360);
    this.controls.target.copy(this.centre);
    this.camera.position.set(...from).setLength(distance).add(this.centre);
    this.controls.update();
  }

  recolour(colours) {
    this.ground.recolour(colours);
    const dark = luminance(colours.paper) < 0.4;
    this.sky.intensity = dark ? 1.1 : 1.5;
    this.sun.intensity = dark ? 1.9 : 2.0;
    this.sky.color.set(threeColour(blend(colours.paper, [255, 255, 255], 0.8)));
    this.sky.groundColor.set(threeColour(blend(colours.quiet, colours.paper, 0.4)));
    const chosen = new Set(this.data.shapes.filter(({ link }) => link >= 0).map(({ colour }) => String(colour)));
    for (const { mesh, shape } of this.meshes) {
      // The model's colours are used only if it has several.
      const modelColour = chosen.size > 1 && shape.colour;
      const [red, green, blue, alpha] = modelColour || [...pageColour(shape, colours).map((part) => part / 255), 1];
      mesh.material.color.setRGB(red, green, blue, "srgb");
      mesh.material.opacity = isGoal({ shape }) ? 0.6 : alpha;
      mesh.material.transparent = mesh.material.opacity < 1;
      mesh.castShadow = !mesh.material.transparent;
    }
  }

  resize(width, height, ratio) {
    this.renderer.setPixelRatio(Math.min(ratio, 2));
    this.renderer.setSize(width, height, false);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
  }

  draw(time) {
    this.time = time;
    const moment = this.episode.moment(time);
    this.pose(this.episode, moment);
    this.follow(this.middle(time));
    this.ground.draw(this.centre, moment);
    this.controls.update();
    this.lookThroughWalls();
    this.renderer.render(this.scene, this.camera);
  }

  /** Sets the pose of every link; a link whose physics diverged is not drawn. */
  pose(episode, moment) {
    this.links.forEach((link, index) => {
      const place = episode.position(index, moment);
      const [w, x, y, z] = episode.rotation(index, moment);
      link.visible = place.every(Number.isFinite) && Number.isFinite(w + x + y + z);
      if (!link.visible) return;
      link.position.set(...place);
      link.quaternion.set(x, y, z, w);
    });
  }

  /** The point that the camera looks at. */
  middle(time) {
    const place = this.path.at(time);
    return place.setZ(place.z + this.lift);
  }

  /** Moves camera and light along with the robot; the user's angle and distance are kept. */
  follow(centre) {
    const way = centre.clone().sub(this.centre);
    this.centre.copy(centre);
    this.camera.position.add(way);
    this.controls.target.add(way);
    this.sun.target.position.copy(centre);
    this.sun.position.copy(centre).add(new Three.Vector3(-2.2, -2.8, 5).multiplyScalar(this.size));
  }

  /** Makes walls that hide the robot translucent. */
  lookThroughWalls() {
    const way = this.camera.position.clone().sub(this.centre);
    this.sight.far = way.length();
    this.sight.set(this.centre, way.normalize());
    for (const { mesh } of this.walls) {
      const hides = this.sight.intersectObject(mesh).length > 0;
      mesh.material.opacity = hides ? BODIES.glass : 1;
      mesh.material.transparent = hides;
      mesh.material.depthWrite = !hides;
    }
  }

  destroy() {
    this.forgetSwipes();
    this.controls.dispose();
    this.scene.traverse((part) => {
      if (part.geometry) part.geometry.dispose();
      if (part.material) part.material.dispose();
    });
    this.renderer.dispose();
    // Browsers limit the number of contexts, and free an unused one late unless it is released.
    this.renderer.forceContextLoss();
    this.canvas.remove();
  }
}

/** The smoothed path of the robot's centre in an episode, which the camera follows. */
class BodiesPath {
  constructor(episode, secondsPerStep, size) {
    this.episode = episode;
    const links = episode.arrays.position.shape[2];
    this.raw = [];
    for (let frame = 0; frame < episode.frames; frame++) this.raw.push(this.middle(frame, links));
    const reach = [0, 1, 2].map((axis) => {
      const along = this.raw.map((place) => place[axis]);
      return Math.max(...along) - Math.min(...along);
    });
    this.still = Math.hypot(...reach) < BODIES.still * size;
    this.smooth = this.still ? this.fixed() : this.smoothed(BODIES.calm / (secondsPerStep || 0.05));
  }

  /** Centre of all links; the last known one after the physics diverged. */
  middle(frame, links) {
    const moment = { frame, next: frame, mix: 0 };
    const sum = [0, 0, 0];
    for (let link = 0; link < links; link++) {
      this.episode.position(link, moment).forEach((part, axis) => (sum[axis] += part / links));
    }
    return sum.every(Number.isFinite) ? sum : this.raw[frame - 1] || [0, 0, 0];
  }

  fixed() {
    const mean = [0, 1, 2].map((axis) => this.raw.reduce((sum, place) => sum + place[axis], 0) / this.raw.length);
    return this.raw.map(() => mean);
  }

  /** The path averaged with a Gaussian kernel, whose width is in steps. */
  smoothed(width) {
    const times = this.raw.map((_, frame) => this.episode.stepAt(frame));
    return times.map((time) => {
      const sum = [0, 0, 0];
      let all = 0;
      times.forEach((other, frame) => {
        const weight = Math.exp(-0.5 * ((other - time) / width) ** 2);
        all += weight;
        this.raw[frame].forEach((part, axis) => (sum[axis] += part * weight));
      });
      return sum.map((part) => part / all);
    });
  }

  at(time) {
    const { frame, next, mix } = this.episode.moment(time);
    return new Three.Vector3(...this.smooth[frame]).lerp(new Three.Vector3(...this.smooth[next]), mix);
  }
}
