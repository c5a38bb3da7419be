"""Rendering of environments: descriptions of pictures, and helpers that write films."""

from rookery.envs.rendering.scene import Picture, Pose, Scene, Scenery, Shape

__all__ = ["Picture", "Pose", "Scene", "Scenery", "Shape"]
