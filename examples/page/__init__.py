"""The parts of the page `examples/app.py`: models, writing, showing, the stream of calls, and its layout."""
