"""One decoder under Atheris: coverage-guided, from a corpus that begins with real messages and grows where it lay.

    python -m tests.fuzz.harness NAME FOLDER [libFuzzer's options, such as -runs=1000000 -seed=1]

FOLDER keeps the corpus, so a second run goes on where the first ended, and beside it every input that broke something;
such a file, given as `-runs=1 FILE`, does it again. Half of the changes are Atheris's own, with lengths and digest made
right afterwards, half those of `hostile`. One input in WEIGH_EVERY is weighed. Needs the extra `fuzz`; nothing else
imports this module.
"""

import hashlib
import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["agent", "rfc8785"]):
    from tests.fuzz.decoders import TARGETS

WEIGH_EVERY = 100
RSS_MB_MAX = 512  # the interpreter with what it has imported has some 100
INPUT_BYTES_MAX = 16 * 1024  # what is larger is tried in test_decoders; here it would only cost speed
INPUT_S_MAX = 10


def main() -> None:
    """Fuzz the decoder named on the command line until libFuzzer stops."""
    name, folder, *options = sys.argv[1:]
    target, corpus, inputs = TARGETS[name], Path(folder, "corpus"), 0
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)

    def examine(payload: bytes) -> None:
        nonlocal inputs
        inputs += 1
        target.examine(payload)
        if inputs % WEIGH_EVERY == 0:
            target.weigh(payload)

    def change(payload: bytes, bytes_max: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.5:
            changed = target.repair(atheris.Mutate(payload, bytes_max))
        else:
            changed = target.mutate(chance, payload)
        return changed[:bytes_max]

    command = [
        sys.argv[0], *options, f"-rss_limit_mb={RSS_MB_MAX}", f"-max_len={INPUT_BYTES_MAX}", f"-timeout={INPUT_S_MAX}",
        f"-artifact_prefix={folder}/", "-len_control=0", "-print_final_stats=1",
    ]  # fmt: skip
    if not any(Path(option).is_file() for option in options):
        command.append(str(corpus))
    atheris.Setup(command, examine, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
