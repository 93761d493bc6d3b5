# SPDX-License-Identifier: Apache-2.0
"""Loads llama-server on lowkey with requests of random lengths, and checks what it answers.

    server.py --server PROGRAM --models FOLDER --work FOLDER [--requests N]

The server listens on the loopback. Half of a run is the load of all slots at once, the other half the same requests
one at a time."""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import random
import re
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILLER = (ROOT / 'tests/model/texts/suite.txt').read_text(encoding='utf-8')
N_SLOTS = 4
SLOT_TOKENS = 2048
START_S, REPLY_S = 120, 600


class Server:
    """A llama-server of its own; `log` has what it wrote so far."""

    def __init__(self, program, model, work, *options):
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            self.port = free.getsockname()[1]
        self.slots = work / 'slots'
        self.slots.mkdir(parents=True, exist_ok=True)
        self.log_path = work / 'server.log'
        # One thread: those of ggml spin, which a busy machine punishes.
        command = [program, '-m', model, '--host', '127.0.0.1', '--port', self.port, '-np', N_SLOTS, '-t', 1,
                   '--slot-save-path', f'{self.slots}/', '--no-warmup', '--offline', *options]
        with open(self.log_path, 'wb') as log:
            self.process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
        try:
            self.wait()
        except BaseException:
            self.close()
            raise

    def wait(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            assert self.process.poll() is None, f'the server ended:\n{self.log[-2000:]}'
            with contextlib.suppress(OSError):
                if self.call('GET', '/health')[0] == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f'the server does not start:\n{self.log[-2000:]}')

    @property
    def log(self):
        return self.log_path.read_text(encoding='utf-8', errors='replace')

    def call(self, method, path, body=None):
        """Status and decoded JSON of a reply."""
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=REPLY_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {'Content-Type': 'application/json'})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read() or 'null')
        finally:
            connection.close()

    def complete(self, prompt, n_predict, **values):
        return self.call('POST', '/completion', {'prompt': prompt, 'n_predict': n_predict, 'temperature': 0, **values})

    def resident_bytes(self):
        status = pathlib.Path(f'/proc/{self.process.pid}/status').read_text(encoding='utf-8')
        return 1024 * int(re.search(r'VmRSS:\s+(\d+)', status)[1])

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def requests_of(seed, n_requests):
    """(text, new tokens) of random lengths."""
    source = random.Random(seed)
    requests = []
    for _ in range(n_requests):
        n_bytes = int(2 ** source.uniform(4, 10.7))
        begin = source.randrange(len(FILLER) - n_bytes)
        requests.append((FILLER[begin:begin + n_bytes], source.randrange(1, 60)))
    return requests


def check_load(program, model, work, n_requests, is_asan):
    """All slots at once give what single requests give, in bounded memory."""
    budget_bytes = 24 << 20
    # AddressSanitizer keeps freed memory, 256 MB of it away from use, and finds leaks when the server ends.
    other_bytes = (560 if is_asan else 48) << 20
    with Server(program, model, work, '-c', N_SLOTS * SLOT_TOKENS, '--kv-plan', 'kitty-pro', '--kv-budget',
                budget_bytes, '--cache-ram', 0) as server:
        requests = requests_of(1, n_requests)
        server.complete(FILLER[:1000], 5)  # a GPU's kernels are loaded at their first launch
        started_bytes = server.resident_bytes()
        with concurrent.futures.ThreadPoolExecutor(N_SLOTS + 2) as pool:
            replies = list(pool.map(lambda request: server.complete(*request), requests))
        peak_bytes = server.resident_bytes()
        errors = [reply for reply in replies if reply[0] != 200]
        assert not errors, f'{len(errors)} of {n_requests} requests failed: {errors[0]}'
        assert peak_bytes - started_bytes < budget_bytes + other_bytes, \
            f'{peak_bytes - started_bytes} bytes more than at the start, under a budget of {budget_bytes}'
        n_equal = 0
        for request, (_, reply) in zip(requests, replies):
            status, alone = server.complete(*request, cache_prompt=False)
            assert status == 200, alone
            n_equal += reply['content'] == alone['content']
        print(f'{n_requests} requests in {N_SLOTS} slots: {n_equal} replies as alone, '
              f'{(peak_bytes - started_bytes) / 2 ** 20:.1f} MiB more, budget {budget_bytes / 2 ** 20:.0f} MiB')
        # Products of several requests at once have sums in another order, which may turn a tie.
        assert n_equal >= 0.9 * n_requests, f'{n_equal} of {n_requests} replies are as alone'
        check_slots(server)
        check_too_long(server)


def check_slots(server):
    """A saved slot goes on where it was, also in another slot; a damaged file is an error."""
    text = FILLER[3000:4200]
    status, reply = server.complete(text, 30, id_slot=0)
    assert status == 200, reply
    status, saved = server.call('POST', '/slots/0?action=save', {'filename': 'text.bin'})
    assert status == 200 and saved['n_saved'] > 1200, saved
    status, erased = server.call('POST', '/slots/0?action=erase')
    assert status == 200 and erased['n_erased'] == saved['n_saved'], erased
    status, restored = server.call('POST', '/slots/2?action=restore', {'filename': 'text.bin'})
    assert status == 200 and restored['n_restored'] == saved['n_saved'], restored
    status, again = server.complete(text + reply['content'], 20, id_slot=2)
    assert status == 200 and again['timings']['cache_n'] > 1200, again['timings']
    status, whole = server.complete(text, 50, id_slot=1, cache_prompt=False)
    assert status == 200 and whole['content'] == reply['content'] + again['content'], (reply, again, whole)
    path = server.slots / 'text.bin'
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    status, error = server.call('POST', '/slots/3?action=restore', {'filename': 'text.bin'})
    assert status == 400 and 'Unable to restore slot' in error['error']['message'], error
    assert 'lowkey: snapshot: ' in server.log, server.log[-2000:]
    assert server.complete(text, 5, id_slot=3)[0] == 200


def check_too_long(server):
    """A prompt beyond a slot's context is an error of the request."""
    status, error = server.complete(FILLER[:SLOT_TOKENS + 100], 5)
    assert status == 400 and 'exceeds the available context size' in error['error']['message'], error
    assert server.complete('after it', 5)[0] == 200


def check_budget(program, model, work):
    """Requests beyond the budget are errors with a sentence, and the server goes on."""
    with Server(program, model, work, '-c', N_SLOTS * SLOT_TOKENS, '-ub', 128, '--kv-plan', 'kitty-pro', '--kv-budget',
                '4M', '--cache-ram', 0) as server:
        for _ in range(2):
            status, error = server.complete(FILLER[:SLOT_TOKENS - 100], 5)
            assert status == 500 and error['error']['message'], (status, error)
            status, reply = server.complete(FILLER[:200], 10)
            assert status == 200 and reply['content'], reply
        assert 'LK_E_BUDGET' in server.log, server.log[-2000:]
        print(f'beyond the budget: HTTP 500, "{error["error"]["message"]}"')


def check_reuse(program, model, work, least_reused, *options):
    """A model goes on with a prompt, and back to a part of it, as if it began anew. least_reused has the tokens that it
    computes for neither at least: windows free keys, and recurrent layers go back to one of the server's checkpoints."""
    text = FILLER[5000:6200]
    prompts = [text, text + FILLER[9000:9100], text[:700] + FILLER[100:200]]
    with Server(program, model, work, '-c', N_SLOTS * SLOT_TOKENS, '--kv-plan', 'fp16', '--cache-ram', 0,
                *options) as server:
        for prompt, n_reused in zip(prompts, (0, *least_reused)):
            status, reply = server.complete(prompt, 8, id_slot=0, return_tokens=True)
            assert status == 200 and reply['timings']['cache_n'] >= n_reused, reply
            status, fresh = server.complete(prompt, 8, id_slot=1, return_tokens=True, cache_prompt=False)
            assert status == 200 and reply['tokens'] == fresh['tokens'], (reply, fresh)


def check(program, models, work, n_requests, is_asan=False):
    """models: paths by name, as gguf_models.all_models() gives them. is_asan: the program has AddressSanitizer."""
    work.mkdir(parents=True, exist_ok=True)
    check_load(program, models['prover'], work, n_requests, is_asan)
    check_budget(program, models['prover'], work)
    check_reuse(program, models['gemma3'], work, (1000, 0))
    check_reuse(program, models['gemma3'], work, (1000, 690), '--swa-full')
    for name in ('lfm2', 'qwen35'):
        check_reuse(program, models[name], work, (1000, 500))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--server', type=pathlib.Path, required=True)
    parser.add_argument('--models', type=pathlib.Path, required=True, help='the folder that gguf_models.py wrote')
    parser.add_argument('--work', type=pathlib.Path, required=True)
    parser.add_argument('--requests', type=int, default=200)
    options = parser.parse_args()
    models = {path.stem: path.resolve() for path in options.models.glob('*.gguf')}
    check(options.server.resolve(), models, options.work.resolve(), options.requests)


if __name__ == '__main__':
    sys.exit(main())
