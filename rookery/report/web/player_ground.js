// Ground of a 3D view: a grid that fades into the page, shadows, and the path of the robot.

const GROUND_VERTEX = `
  varying vec2 place;
  void main() {
    vec4 globalPosition = modelMatrix * vec4(position, 1.0);
    place = globalPosition.xy;
    gl_Position = projectionMatrix * viewMatrix * globalPosition;
  }`;

const GROUND_FRAGMENT = `
  uniform vec3 ground;
  uniform vec3 line;
  uniform vec2 centre;
  uniform float cell;
  uniform float far;
  varying vec2 place;
  float lines(float width) {
    vec2 step = place / width;
    vec2 away = abs(fract(step - 0.5) - 0.5) / fwidth(step);
    return 1.0 - min(min(away.x, away.y), 1.0);
  }
  void main() {
    float fade = 1.0 - smoothstep(0.25 * far, far, distance(place, centre));
    float drawn = max(0.55 * lines(cell), lines(5.0 * cell));
    gl_FragColor = vec4(mix(ground, line, drawn), fade * mix(0.75, 1.0, drawn));
    #include <colorspace_fragment>
  }`;

class BodiesGround {
  constructor(scene, data, size) {
    const floor = data.shapes.find(isFloor);
    this.height = floor ? floor.position[2] : lowest(data) - size;
    const far = 14 * size;
    this.uniforms = {
      ground: { value: new Three.Color() },
      line: { value: new Three.Color() },
      centre: { value: new Three.Vector3() },
      cell: { value: 10 ** Math.round(Math.log10(size)) },
      far: { value: far },
    };
    this.grid = this.layer(far, new Three.ShaderMaterial(this.shader()));
    this.shadow = this.layer(far, new Three.ShadowMaterial({ depthWrite: false }));
    this.shadow.receiveShadow = true;
    this.shadow.renderOrder = 1;
    this.pathLine = new Three.Line(new Three.BufferGeometry(), new Three.LineBasicMaterial({ transparent: true }));
    this.pathLine.material.opacity = 0.7;
    this.pathLine.renderOrder = 2;
    this.pathLine.frustumCulled = false;
    scene.add(this.grid, this.shadow, this.pathLine);
  }

  shader() {
    const { uniforms } = this;
    const shaders = { vertexShader: GROUND_VERTEX, fragmentShader: GROUND_FRAGMENT };
    return { uniforms, ...shaders, transparent: true, depthWrite: false };
  }

  layer(far, material) {
    const mesh = new Three.Mesh(new Three.PlaneGeometry(2 * far, 2 * far), material);
    mesh.position.z = this.height;
    return mesh;
  }

  recolour(colours) {
    const dark = luminance(colours.paper) < 0.4;
    this.uniforms.ground.value.set(threeColour(blend(colours.paper, colours.ink, dark ? 0.06 : 0.045)));
    this.uniforms.line.value.set(threeColour(blend(colours.paper, colours.quiet, dark ? 0.35 : 0.5)));
    this.shadow.material.opacity = dark ? 0.5 : 0.22;
    this.pathLine.material.color.set(threeColour(colours.accent));
  }

  /** Sets the path of an episode, which is drawn up to the current frame. */
  trace(path) {
    const places = path.smooth.flatMap(([x, y]) => [x, y, this.height + 1e-3]);
    this.pathLine.geometry.dispose();
    this.pathLine.geometry = new Three.BufferGeometry();
    this.pathLine.geometry.setAttribute("position", new Three.BufferAttribute(new Float32Array(places), 3));
    this.pathLine.visible = !path.still;
  }

  /** The grid follows the robot; its lines stay where they are, as the shader draws them in global coordinates. */
  draw(centre, { frame }) {
    this.uniforms.centre.value.copy(centre);
    for (const layer of [this.grid, this.shadow]) layer.position.set(centre.x, centre.y, this.height);
    this.pathLine.geometry.setDrawRange(0, frame + 1);
  }
}

/** The lowest height of any link, m. */
function lowest(data) {
  const { data: numbers } = data.arrays.position;
  let least = Infinity;
  for (let at = 2; at < numbers.length; at += 3) if (numbers[at] < least) least = numbers[at];
  return Number.isFinite(least) ? least : 0;
}

/** Luminance of a colour, in [0, 1]. */
function luminance([red, green, blue]) {
  return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255;
}

function threeColour([red, green, blue]) {
  return new Three.Color().setRGB(red / 255, green / 255, blue / 255, "srgb");
}
