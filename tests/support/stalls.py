"""Runs tests on a machine that stalls: the process of pytest is stopped for half a second and more at random moments.

Its children continue, as a broker and a device do beside a busy machine. A test whose result depends on how quickly it
is scheduled fails here; it should wait for a condition, or count what the product reports as missed.

    python -m tests.support.stalls tests/foreign/modbus -x
"""

import os
import random
import signal
import subprocess
import sys

STALL_S = (0.3, 0.9)
RUN_S = (0.2, 3.0)


def main() -> None:
    """Run pytest with the arguments of this command; the seed is printed."""
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    print(f"stalls: SEED={seed}", flush=True)
    rng = random.Random(seed)
    environment = {**os.environ, "PYTHONASYNCIODEBUG": "1"}  # as `make test` does
    process = subprocess.Popen([sys.executable, "-m", "pytest", "-q", "-n0", *sys.argv[1:]], env=environment)
    try:
        while not ends_within(process, rng.uniform(*RUN_S)):
            process.send_signal(signal.SIGSTOP)
            ends_within(process, rng.uniform(*STALL_S))
            process.send_signal(signal.SIGCONT)
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    sys.exit(process.returncode)


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the process ended in that time."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


if __name__ == "__main__":
    main()
