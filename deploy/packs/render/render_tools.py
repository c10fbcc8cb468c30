"""An example of a pack whose calls are made by workers: replace it with packs of your own."""

import os
import socket


def preview(scene: str) -> dict[str, str]:
    """Render a small image of a scene, and name the process that did it."""
    return {
        "preview": f"a preview of {scene}",
        "worker": f"{socket.gethostname()}, process {os.getpid()}",
    }
