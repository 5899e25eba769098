"""Checkpoints with a right checksum that Convoy would not write."""

import json

from convoy.checkpoint import store


def rewrite(path, change):
    """Change the body of a manifest, and compute its checksum again."""
    file = path / store.MANIFEST
    body = json.loads(file.read_bytes())["body"]
    changed = change(body)
    body = body if changed is None else changed
    file.write_bytes(store._dump({"body": body, "sha256": store._checksum(body)}))


def setting(value, *keys):
    """Return a change that sets one value in a body."""

    def change(body):
        for key in keys[:-1]:
            body = body[key]
        body[keys[-1]] = value

    return change


def deleting(*keys):
    """Return a change that deletes one value of a body."""

    def change(body):
        for key in keys[:-1]:
            body = body[key]
        del body[keys[-1]]

    return change
