"""Every picture. They need matplotlib (`pip install diffusers_text_nfdm[demo]`)."""
