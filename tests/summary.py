# SPDX-License-Identifier: Apache-2.0
"""Adds up Meson's test logs and prints 'N passed, N failed' as the last line.

Arguments: testlog.json files. A cmocka or pytest program counts with its test functions, any
other program as one test. Exits with 1 when something failed or nothing ran."""
import json
import re
import sys

CMOCKA = re.compile(r'^\[  (PASSED|FAILED|SKIPPED) +\] (\d+) test', re.MULTILINE)
PYTEST = re.compile(r'^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s', re.MULTILINE)


def count(test):
    """Passed, failed and skipped test functions of one log entry."""
    if test['result'] == 'SKIP':
        return 0, 0, 1
    text = test.get('stdout', '') + '\n' + test.get('stderr', '')
    sums = {'PASSED': 0, 'FAILED': 0, 'SKIPPED': 0}
    for kind, number in CMOCKA.findall(text):
        sums[kind] += int(number)
    for line in PYTEST.findall(text):
        for number, kind in re.findall(r'(\d+) (passed|failed|skipped|error)', line):
            sums[kind.upper() if kind != 'error' else 'FAILED'] += int(number)
    good = test['result'] in ('OK', 'EXPECTEDFAIL')
    if not any(sums.values()):
        sums['PASSED'] = int(good)
    if not good:
        sums['FAILED'] = max(sums['FAILED'], 1)
    return sums['PASSED'], sums['FAILED'], sums['SKIPPED']


def main():
    passed = failed = skipped = 0
    for path in sys.argv[1:]:
        with open(path, encoding='utf-8') as log:
            for test in map(json.loads, log):
                ok, bad, left = count(test)
                passed, failed, skipped = passed + ok, failed + bad, skipped + left
                if bad or left:
                    print(f"{'failed' if bad else 'skipped'}: {test['name']} ({test['result']})")
    print(f'{passed} passed, {failed} failed' + (f', {skipped} skipped' if skipped else ''))
    return failed > 0 or passed == 0


if __name__ == '__main__':
    sys.exit(main())
