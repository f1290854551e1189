"""The log has one JSON object per line, whatever writes to standard error, and contains no secret."""

import json
import logging
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from retinad.daemon.logs.rate_limit import RateLimit
from retinad.daemon.logs.redact import Redactor
from retinad.daemon.logs.render import make_formatter

from ...deadlines import scaled

SECRET = "s3cret"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run() -> Run:
    """Runs a script with an open log in its own process: descriptor 2 belongs to the whole process."""

    def run_script(
        script: str, stderr: int | None = subprocess.PIPE, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        head = "import faulthandler, logging, os, sys, threading, warnings\nimport structlog\n"
        head += "from retinad.daemon.logs.setup import open_log\nfrom retinad.daemon.logs.redact import Redactor\n"
        text = (
            head + f"with open_log(Redactor(['{SECRET}'])) as log:\n" + textwrap.indent(textwrap.dedent(script), "    ")
        )
        return subprocess.run(
            [sys.executable, "-c", text],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=scaled(30),
            check=False,
            **options,
        )

    return run_script


def events(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """All lines of the log; fails if one is not a JSON object or contains a secret."""
    assert SECRET not in result.stderr
    assert result.stdout == ""
    lines = [json.loads(line, parse_constant=pytest.fail) for line in result.stderr.splitlines()]
    assert all({"event", "level", "logger", "time"} <= line.keys() for line in lines)
    return lines


@pytest.mark.parametrize(
    ("statement", "event", "level"),
    [
        ("structlog.get_logger('x').info('hello', n=1)", "hello", "info"),
        ("logging.getLogger('lib').error('a %s', 'b')", "a b", "error"),
        ("warnings.warn('careful')", "<string>:6: UserWarning: careful", "warning"),
        ("os.write(2, b'native\\n')", "native", "warning"),
        ("os.write(2, b'no end of line')", "no end of line", "warning"),
        ("os.write(2, b'[h264 @ 0x1] bad \\xff\\x1b[31m\\r\\n\\n')", "[h264 @ 0x1] bad \\xff\\x1b[31m", "warning"),
        ("print('from python', file=sys.stderr)", "from python", "warning"),
        ("os.system('echo from a child >&2')", "from a child", "warning"),
        (
            "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
            "uncaught exception in a thread",
            "critical",
        ),
        ("logging.getLogger('x').info('%d', 'no number')", "log event could not be formatted or written", "error"),
    ],
)
def test_whatever_is_written_is_an_event(run: Run, statement: str, event: str, level: str) -> None:
    result = run(statement)
    line = json.loads(result.stderr.splitlines()[0])
    assert (line["event"].splitlines()[0], line["level"]) == (event, level)
    assert len(result.stderr.splitlines()) == 1


def test_an_exception_nobody_catches_is_an_event(run: Run) -> None:
    # The context ends before sys.excepthook would run, so the test calls it.
    line = events(run(f"try: raise KeyError('{SECRET}')\nexcept KeyError: sys.excepthook(*sys.exc_info())"))[0]
    assert (line["event"], line["level"]) == ("uncaught exception", "critical")
    assert "KeyError" in line["exception"]


def test_no_secret_is_logged(run: Run) -> None:
    script = f"""
        url = "rtsp://admin:other@127.0.0.1/x?password=another"
        log = structlog.get_logger("x")
        log.info("hello {SECRET}", url=url, nested={{"a": ["{SECRET}", url]}}, **{{"k{SECRET}": 1}})
        logging.getLogger("lib").info("open %s failed", url, extra={{"source": url}})
        os.write(2, (url + " failed\\n").encode())
        try:
            raise OSError(url)
        except OSError:
            log.exception("failed", error=OSError(url))
    """
    result = run(script)
    assert len(events(result)) == 4
    assert not any(word in result.stderr for word in ("admin", "other@", 'another"', "=another"))
    assert "127.0.0.1" in result.stderr


def test_values_that_json_cannot_hold_are_written_as_text(run: Run) -> None:
    (line,) = events(run("structlog.get_logger('x').info('e', a=float('nan'), b=b'x', c={1: {2}}, d=os, e='\\udcff')"))
    assert (line["a"], line["b"], line["c"]) == ("nan", "b'x'", {"1": [2]})


def test_repeated_lines_of_native_output_are_suppressed(run: Run) -> None:
    lines = events(run("for n in range(1000): os.write(2, f'error at 0x{n:x} {n}\\n'.encode())"))
    assert len(lines) <= 7
    assert lines[-1]["suppressed"] == 995


def test_a_flood_from_a_library_that_holds_the_gil_does_not_hang(run: Run) -> None:
    script = "import ctypes\nctypes.PyDLL(None).write(2, b'x' * 500_000 + b'\\n', 500_001)"
    assert sum(len(line["event"]) for line in events(run(script))) <= 500_000


def test_a_child_that_lives_on_does_not_keep_the_log_open(run: Run) -> None:
    script = "import subprocess, time\nchild = subprocess.Popen(['sleep', '20'])\nprint('x', file=sys.stderr)"
    result = run(f"{script}\nimport atexit; atexit.register(child.kill)")
    assert [line["event"] for line in events(result)] == ["x"]


def test_a_crash_of_the_interpreter_leaves_a_stack(run: Run) -> None:
    result = run("log.stream.flush(); faulthandler._sigsegv()")
    assert result.returncode < 0
    assert "Fatal Python error: Segmentation fault" in result.stderr


@pytest.mark.parametrize("ending", ["_exit(2)", "exit(2)", "abort()", "kill(os.getpid(), 9)"])
def test_the_last_words_of_a_library_that_ends_the_process_are_in_the_log(run: Run, ending: str) -> None:
    """As they are: nobody is left to make an event of them. Math libraries exit, libzmq aborts."""
    script = (
        f"import ctypes\nlibrary = ctypes.CDLL(None)\nlibrary.write(2, b'INTEL MKL ERROR\\n', 16)\nlibrary.{ending}"
    )
    result = run(script)
    assert result.returncode in (2, -6, -9)
    assert "INTEL MKL ERROR" in result.stderr


def test_nothing_is_left_of_an_ordinary_end(run: Run) -> None:
    """Neither words that are printed twice, nor a process."""
    children = "open(f'/proc/self/task/{os.getpid()}/children').read().split()"
    result = run(
        f"os.write(2, b'once\\n')\nimport atexit\natexit.register(lambda: os.write(1, str({children}).encode()))"
    )
    assert result.stderr.count("once") == 1
    assert result.stdout == "[]"


def test_a_signal_to_all_processes_of_the_unit_leaves_the_last_words(run: Run) -> None:
    script = """
        import ctypes, signal, time
        for child in open(f'/proc/self/task/{os.getpid()}/children').read().split():
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                os.kill(int(child), number)
        ctypes.CDLL(None).write(2, b'last\\n', 5)
        ctypes.CDLL(None)._exit(2)
    """
    assert "last" in run(script).stderr


@pytest.mark.parametrize("crash", ["faulthandler._sigsegv()", "os.abort()"])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_crash_ends_the_process_even_if_nobody_reads_its_log(run: Run, crash: str, kind: str) -> None:
    ends = [end.detach() for end in socket.socketpair()] if kind == "socket" else list(os.pipe())
    os.set_blocking(ends[1], False)
    with suppress(BlockingIOError):
        while os.write(ends[1], b"x" * 1000):
            pass
    os.set_blocking(ends[1], True)
    assert run(crash, stderr=ends[1]).returncode < 0
    for end in ends:
        os.close(end)


def test_standard_error_may_be_closed_or_broken(run: Run) -> None:
    script = "os.write(2, b'x\\n' * 100)\nlogging.getLogger('x').error('x')\nimport time\ntime.sleep(0.2)\n"
    script += "assert time.process_time() < 5\nos.write(1, b'done')"
    for spoil in (_close_stderr, _break_stderr):
        result = run(script, stderr=None, preexec_fn=spoil)
        assert (result.stdout, result.returncode) == ("done", 0)


def _close_stderr() -> None:
    os.close(2)


def _break_stderr() -> None:
    read_fd, write_fd = os.pipe()
    os.dup2(write_fd, 2)
    os.close(read_fd)
    os.close(write_fd)


def test_descriptor_2_is_restored(run: Run) -> None:
    result = run("logging.getLogger('x').error('x')\nimport atexit; atexit.register(lambda: os.write(2, b'plain\\n'))")
    assert result.stderr.splitlines()[-1] == "plain"


def test_level_and_format_follow_the_config(run: Run) -> None:
    script = """
        logger = structlog.get_logger("x")
        logger.debug("no")
        log.configure("debug", "console")
        logger.debug("yes", key="a b")
        log.configure("error", "json")
        logger.warning("no")
        logger.error("json")
    """
    console, last = run(script).stderr.splitlines()
    assert "yes" in console
    assert "key='a b'" in console
    assert json.loads(last)["event"] == "json"


def test_the_console_format_has_no_local_variables_in_tracebacks() -> None:
    formatter = make_formatter("console", False, Redactor([SECRET]))
    try:
        password = "local-" + "value"
        raise ValueError(f"{SECRET} \x1b[2J {len(password)}")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "boom", (), (ValueError, error, error.__traceback__))
    text = formatter.format(record)
    assert "ValueError: *** \\x1b[2J" in text
    assert "local-value" not in text


@pytest.mark.parametrize(
    "text",
    [
        "rtsp://admin:PASS@h/x",
        "rtsp://:PASS@h",
        "'http://admin:PASS@h'",
        "http://h/x?user=a&password=PASS&b=1",
        "http://h/x?token=PASS",
        "(rtsp://a:b@/PASS#?@h)",
        "method OPTIONS of rtsp://a:PASS@h/x failed: 401",
    ],
)
def test_credentials_of_unknown_addresses_are_masked(text: str) -> None:
    assert "PASS" not in Redactor().redact(text)
    assert Redactor().redact(text).strip("'()")


@pytest.mark.parametrize("secret", ["p@ss/w#rd?", "it's", 'say "x"', "back\\slash", "naïve", "a b c"])
def test_known_secrets_are_masked_as_quoted_too(secret: str) -> None:
    redactor = Redactor()
    redactor.add([secret, "abc", ""])
    for text in (secret, repr(secret), json.dumps(secret), str(KeyError(secret))):
        assert "***" in redactor.redact(text)
        assert secret not in redactor.redact(text)
    assert redactor.redact("abc and 12") == "abc and 12"  # too short to mask everywhere


def test_the_rate_limit_admits_the_first_of_an_interval_and_counts_the_rest() -> None:
    now = [0.0]
    limit = RateLimit(10, burst=2, clock=lambda: now[0])
    assert [limit.admit("a") for _ in range(5)] == [0, 0, None, None, None]
    assert limit.admit("b") == 0
    now[0] = 9.9
    assert limit.admit("a") is None
    now[0] = 10.0
    assert limit.admit("a") == 4
    assert limit.admit("a") == 0
    assert limit.admit("a") is None
    assert limit.take_suppressed() == {"a": 1}
    assert limit.take_suppressed() == {}


def test_the_rate_limit_keeps_a_bounded_number_of_keys() -> None:
    limit = RateLimit(1e9)
    for number in range(10_000):
        assert limit.admit(str(number)) == 0
    assert limit.admit("9999") is None
    assert limit.admit("0") == 0  # forgotten
