"""Figures, tables and pages of finished or running runs; reads run folders only, never imports agents."""
