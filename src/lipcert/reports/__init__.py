"""Run folders in; one HTML page, its figures, Markdown, JSON and RobustBench entries out."""
