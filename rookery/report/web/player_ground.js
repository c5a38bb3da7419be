// The ground that bodies stand on: a grid that fades into the page, their shadow, and the way they came.

const GROUND_VERTEX = `
  varying vec2 place;
  void main() {
    vec4 world = modelMatrix * vec4(position, 1.0);
    place = world.xy;
    gl_Position = projectionMatrix * viewMatrix * world;
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
    this.way = new Three.Line(new Three.BufferGeometry(), new Three.LineBasicMaterial({ transparent: true }));
    this.way.material.opacity = 0.7;
    this.way.renderOrder = 2;
    this.way.frustumCulled = false;
    scene.add(this.grid, this.shadow, this.way);
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
    this.way.material.color.set(threeColour(colours.accent));
  }

  /** Takes the way of an episode, of which as much is drawn as has been walked. */
  trace(path) {
    const places = path.smooth.flatMap(([x, y]) => [x, y, this.height + 1e-3]);
    this.way.geometry.dispose();
    this.way.geometry = new Three.BufferGeometry();
    this.way.geometry.setAttribute("position", new Three.BufferAttribute(new Float32Array(places), 3));
    this.way.visible = !path.still;
  }

  /** The grid follows the robot; its lines stay where they are, as the shader draws them in the world's metres. */
  draw(centre, { frame }) {
    this.uniforms.centre.value.copy(centre);
    for (const layer of [this.grid, this.shadow]) layer.position.set(centre.x, centre.y, this.height);
    this.way.geometry.setDrawRange(0, frame + 1);
  }
}

/** The lowest that any link comes, m. */
function lowest(data) {
  const { data: numbers } = data.arrays.position;
  let least = Infinity;
  for (let at = 2; at < numbers.length; at += 3) if (numbers[at] < least) least = numbers[at];
  return Number.isFinite(least) ? least : 0;
}

/** How bright a colour of the page is, in [0, 1]. */
function luminance([red, green, blue]) {
  return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255;
}

function threeColour([red, green, blue]) {
  return new Three.Color().setRGB(red / 255, green / 255, blue / 255, "srgb");
}
