"""Checkpoints and exported versions with damaged and crafted files."""

import contextlib
import json
import random
import shutil
from collections import Counter

from convoy.checkpoint import CheckpointError, store
from convoy.serving import artifact
from convoy.serving.errors import ArtifactError
from tests.checkpoint.crafted import rewrite

from .mutation import mutate, mutate_json


class FileFuzz:
    """Reads copies of a folder, each with one change.

    Args:
        original: the intact folder.
        work: folder for the copies.
        seed: seed of the generator.
    """

    def __init__(self, original, work, seed):
        self.original, self.work = original, work
        self.rng = random.Random(f"{seed}/{type(self).__name__}")
        self.outcomes = Counter()
        self.faults = []

    def run_one(self):
        """Change a copy and read it; anything but an error in one line is a fault."""
        copy = self.work / self.original.name
        shutil.copytree(self.original, copy)
        try:
            change = self.change(copy)
            try:
                self._read(copy)
                outcome = "read"
            except (ArtifactError, CheckpointError) as error:
                outcome = "refused"
                if "\n" in str(error):
                    self.faults.append(f"more than one line: {error}")
            except Exception as error:
                outcome = type(error).__name__
                self.faults.append(f"{error!r} after {change}")
            self.outcomes[outcome] += 1
        finally:
            shutil.rmtree(copy)

    def change(self, folder):
        """Damage a folder, or craft one with right checksums; return what was changed."""
        return self._craft(folder) if self.rng.random() < 0.5 else self._damage(folder)

    def _damage(self, folder):
        file = self.rng.choice(sorted(folder.iterdir()))
        data = mutate(self.rng, file.read_bytes())
        file.write_bytes(data)
        return f"{file.name}: {data[:300]}"


class CheckpointFuzz(FileFuzz):
    def _craft(self, folder):
        rewrite(folder, lambda body: mutate_json(self.rng, body))
        return (folder / store.MANIFEST).read_text()[:2000]

    def _read(self, folder):
        store.read(folder)


class ArtifactFuzz(FileFuzz):
    def _craft(self, folder):
        file = folder / artifact.MANIFEST
        manifest = json.loads(file.read_bytes())
        with contextlib.suppress(KeyError):
            del manifest[artifact.CHECKSUM]
        manifest = mutate_json(self.rng, manifest)
        manifest[artifact.CHECKSUM] = artifact._manifest_checksum(manifest)
        text = json.dumps(manifest)
        file.write_text(text)
        return text[:2000]

    def _read(self, folder):
        artifact.read(folder)
