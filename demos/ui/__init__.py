"""What the Gradio demos are made of. Only :mod:`demos.ui.tabs` and :mod:`demos.ui.launch` know Gradio."""
