"""Demos of mmspec: Gradio apps, a ComfyUI node, scripts. Run from a checkout, e.g. ``python demos/app.py``."""
