"""What a run stores: its folder, tables, events and checkpoints."""
