"""Devices and processes: meshes, shardings, compiled programs, and runs over several processes."""

from rookery.distributed.initialize import ProcessesConfig, process_group
from rookery.distributed.layout import placement
from rookery.distributed.mesh import make_mesh, mesh_for, use_cores

__all__ = ["ProcessesConfig", "make_mesh", "mesh_for", "placement", "process_group", "use_cores"]
