// Shapes of a 3D view as three.js meshes, with their colours, and the size of a robot.

function isFloor({ link, kind, rotation }) {
  const [, x, y] = rotation || [1, 0, 0, 0];
  return link < 0 && kind === "plane" && Math.hypot(x, y) < 0.01;
}

function isGoal({ shape }) {
  return shape.role === "goal";
}

/** Static shapes are pale, goals green; the links of a robot differ slightly, so that its joints are visible. */
function pageColour({ link, role }, { series, quiet, paper, ink }) {
  if (role === "goal") return series[4];
  if (link < 0) return blend(quiet, paper, 0.35);
  return blend(series[2], ink, [0, 0.2, 0.1][link % 3]);
}

/** A shape as a mesh in the frame of its link; capsules and cylinders are aligned with z. */
function shapeMesh(shape) {
  const material = new Three.MeshStandardMaterial({ roughness: 0.55, metalness: 0.0 });
  const mesh = new Three.Mesh(shapeGeometry(shape), material);
  const [w, x, y, z] = shape.rotation || [1, 0, 0, 0];
  mesh.position.set(...(shape.position || [0, 0, 0]));
  mesh.quaternion.set(x, y, z, w);
  mesh.receiveShadow = true;
  if (shape.kind === "plane") material.side = Three.DoubleSide;
  return mesh;
}

function shapeGeometry({ kind, size }) {
  const [first, second, third] = size;
  if (kind === "capsule") return new Three.CapsuleGeometry(first, 2 * second, 10, 28).rotateX(Math.PI / 2);
  if (kind === "cylinder") return new Three.CylinderGeometry(first, first, 2 * second, 36).rotateX(Math.PI / 2);
  if (kind === "sphere") return new Three.SphereGeometry(first, 32, 20);
  if (kind === "ellipsoid") return new Three.SphereGeometry(1, 32, 20).scale(first, second, third);
  if (kind === "box") return new Three.BoxGeometry(2 * first, 2 * second, 2 * third);
  // MuJoCo's planes without a size are infinite; this size exceeds the view.
  return new Three.PlaneGeometry(2 * (first || 50), 2 * (second || 50));
}

/** The bounding box of a robot in its current pose: half its diagonal, m, and the height of its centre. */
function robotBox(links, goals) {
  const box = new Three.Box3();
  for (const link of links) {
    link.updateMatrixWorld();
    link.traverse((part) => part.isMesh && !goals.has(part) && box.expandByObject(part));
  }
  const size = box.isEmpty() ? NaN : box.getSize(new Three.Vector3()).length() / 2;
  if (!(Number.isFinite(size) && size > 0)) return { size: 1, height: 0 };
  return { size, height: box.getCenter(new Three.Vector3()).z };
}
