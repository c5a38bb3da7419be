"""The sections of a report page, as JSON values."""
