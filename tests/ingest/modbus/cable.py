"""Carries bytes between two open files until it is killed: the cable between two pseudo terminals."""

import os
import select
import sys

if __name__ == "__main__":
    left, right = int(sys.argv[1]), int(sys.argv[2])
    while True:
        for end in select.select([left, right], [], [])[0]:
            os.write(right if end == left else left, os.read(end, 4096))
