"""kill_save.py SAVE_LOOP [KILLS]: end saves by SIGKILL at random times; the file is whole every time."""
# SPDX-License-Identifier: Apache-2.0
import os
import random
import signal
import subprocess
import sys
import tempfile
import time


def kill_one(program, path, longest):
    """Start a writer, end it, and say how far it came: saves done, and whether one was under way."""
    writer = subprocess.Popen([program, 'write', path], stdout=subprocess.PIPE)
    writer.stdout.readline()  # the first save is done: the rest are over it
    time.sleep(random.uniform(0, longest))
    writer.send_signal(signal.SIGKILL)
    done = 1 + writer.stdout.read().count(b'\n')
    writer.wait()
    return done, os.path.exists(path + '.partial')


def main():
    program, kills = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500
    seed = random.SystemRandom().randrange(1 << 32)
    random.seed(seed)
    n_broken = n_partial = n_done = 0
    with tempfile.TemporaryDirectory(dir='.') as folder:
        path = os.path.join(folder, 'cache.lksnap')
        for _ in range(kills):
            done, was_under_way = kill_one(program, path, 0.05)
            n_done += done
            n_partial += was_under_way
            n_broken += subprocess.run([program, 'check', path]).returncode != 0
    print(f'seed {seed}: {kills} kills among {n_done} saves, {n_partial} of them within one; '
          f'{n_broken} broken files')
    return bool(n_broken) or (kills >= 100 and not n_partial)


if __name__ == '__main__':
    sys.exit(main())
