"""A page to write with a model and to watch how a text comes about.

    python examples/app.py                          # the checkpoints that came along
    python examples/app.py --checkpoints runs/run   # every pipeline below a folder

It needs gradio: pip install -c constraints.txt -e ".[demo]" in the clone. Nothing is fetched at run time, except a
model that is asked for by its name on the Hub.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path


HERE = Path(__file__).resolve().parent


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own = next((folder for folder in (HERE / "checkpoints", HERE.parent / "checkpoints") if folder.is_dir()), HERE)
    parser.add_argument(
        "--checkpoints",
        type=Path,
        nargs="+",
        default=[own],
        help="folders with pipelines (default: those that came along)",
    )
    parser.add_argument("--device", help="(default: cuda if there is one)")
    parser.add_argument("--host", help="(default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="(default: the first free one from 7860 on)")
    args = parser.parse_args(arguments)
    # `--help` does not wait for these.
    import torch
    from page.layout import build_page, launch_options
    from page.models import find_checkpoints

    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    # Denormal numbers slow these networks down on a CPU.
    torch.set_flush_denormal(True)
    try:
        page = build_page(find_checkpoints(args.checkpoints), args.device)
    except ImportError:
        parser.error("the page needs gradio: pip install diffusers_text_nfdm[demo]")
    page.launch(server_name=args.host, server_port=args.port, **launch_options())


if __name__ == "__main__":
    main()
