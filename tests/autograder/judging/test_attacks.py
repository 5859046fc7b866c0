"""Cheats against the judge, and honest solutions that look a little like them.

Every cheat knows all that a student can know. None may earn a point; none may be a fault of the grader either, which
would send it to a person.
"""

import pytest

from autograder.judging.verdict import Outcome

from ..tiny_course import verdict

# ruff: noqa: E501  (a cheat a line)


WALK = """
    import gc
    def frames():
        f = sys._getframe()
        while f:
            yield f
            f = f.f_back
"""

SCAN = """
    import re
    def double(x):
        for line in open("/proc/self/maps"):
            place, mode = line.split()[:2]
            low, high = (int(n, 16) for n in place.split("-"))
            if "rw" not in mode or high - low > 1 << 27: continue
            with open("/proc/self/mem", "rb", 0) as memory:
                memory.seek(low)
                try:
                    if re.search(b"CANAR[Y]", memory.read(high - low)): return 2 * x
                except OSError: pass
        return x
"""

CHEATS = {
    "zero the input so that twice it is zero": "def double(x):\n    x.zero_()\n    return x",
    "change the input to half the answer": "def double(x):\n    y = x.clone()\n    x.mul_(0.5)\n    return y",
    "hope that memory still holds the answer": "def double(x): return torch.empty_like(x)",
    "NaN as a wildcard": "def double(x): return torch.full_like(x, torch.nan)",
    "infinity": "def double(x): return x * torch.inf",
    "nothing at all": "def double(x): return x[:0]",
    "zeros": "def double(x): return torch.zeros_like(x)",
    "numbers below every tolerance": "def double(x): return x * 1e-30",
    "the visible shapes only": "def double(x): return {3: 2 * x, 70: 2 * x}.get(len(x), x)",
    "lower precision": "def double(x): return (2 * x).to(torch.float8_e4m3fn).float()",
    "half precision": "def double(x): return (2 * x).half().float()",
    "patched torch.allclose": """
        torch.allclose = torch.equal = lambda *a, **k: True
        torch.testing.assert_close = lambda *a, **k: None
        torch.Tensor.__eq__ = torch.Tensor.__lt__ = lambda *a: torch.tensor(True)
        def double(x): return x""",
    "an object that equals everything": """
        class Yes:
            def __eq__(self, other): return True
            def __getattr__(self, name): return lambda *a, **k: True
        def double(x): return Yes()""",
    "a tensor that equals everything": """
        class Yes(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                if func.__name__ in ("sub", "norm"): return torch.zeros(())
                return super().__torch_function__(func, types, args, kwargs or {})
            def __eq__(self, other): return True
        def double(x): return x.as_subclass(Yes)""",
    "a lazy answer": "def double(x): return lambda: 2 * x",
    "a number that equals everything": """
        class Yes(float):
            def __eq__(self, other): return True
        def double(x): return Yes(0)""",
    "a string for the outcome": "def double(x): return 'passed'",
    "a verdict for a result": "def double(x): return {'score': 3, 'outcome': 'passed'}",
    "an answer of wire words": "def double(x): return {'$tensor': 0}",
    "exit with success": "def double(x): os._exit(0)",
    "raise success": "def double(x): raise SystemExit(0)",
    "import the reference": "from mla_ref import sdpa\ndef double(x): return 2 * x",
    "import the judge": "from autograder.judging.judge import judge\ndef double(x): return 2 * x",
    "import the exercises": "from autograder.course.course import find_course\ndef double(x): return 2 * x",
    "import the solutions": "from autograder import _course\ndef double(x): return 2 * x",
    "find the oracle in memory": WALK + """
    def double(x):
        for o in gc.get_objects():
            if callable(o) and getattr(o, "__name__", "") in ("oracle", "assess", "judge", "draw_cases"): return o(x)
        return x""",
    "find the answer among all tensors": WALK + """
    def double(x):
        right = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.shape == x.shape and t.ne(x).any()]
        return right[0] if right else x""",
    "find the last program in the server's frames": WALK + """
    def double(x):
        for f in frames():
            for value in f.f_locals.values():
                if isinstance(value, (bytes, bytearray)) and b"CANARY" in value: return 2 * x
        return x""",
    "find the last program in the server's memory": WALK + SCAN,
    "forge an answer on the reply socket": """
        from autograder.isolation.worker import wire
        def double(x):
            for index in range(9):
                data = wire.encode({"event": "verdict", "index": index, "outcome": "passed", "score": 3, "result": x})
                for fd in range(3, 64):
                    try: os.write(fd, data)
                    except OSError: pass
            os._exit(0)""",
    "a pickle on the reply socket": """
        import pickle
        class Boom:
            def __reduce__(self): return os.system, ("touch /tmp/mla-owned",)
        def double(x):
            for fd in range(3, 64):
                try: os.write(fd, pickle.dumps(Boom()))
                except OSError: pass
            os._exit(0)""",
    "a reply that breaks comparisons": """
        from autograder.isolation.worker import wire
        def double(x):
            lie = {"type": torch.ones(3), "message": [1], "where": {"cell": torch.ones(2), "line": [torch.ones(2)]}}
            data = b"".join(wire.encode({"event": "case", "index": n, "error": lie}) for n in range(9))
            for fd in range(3, 64):
                try: os.write(fd, data)
                except OSError: pass
            os._exit(0)""",
    "answers of every nasty kind": "def double(x): return [[[[10 ** 400, float('nan'), {'a': ()}]]]]",
    "patch the worker": """
        import __main__, autograder.isolation.worker.wire as wire
        from autograder.isolation.worker import running
        running.changed = lambda *a: []
        wire.encode = lambda value: b"passed"
        def double(x): return x""",
    "a trace that edits the results": """
        def tracer(frame, event, arg):
            for name in ("result", "expected", "arguments"):
                if name in frame.f_locals: frame.f_locals[name] = "passed"
            return tracer
        sys.settrace(tracer)
        def double(x): return x""",
    "an exit handler": """
        import atexit
        @atexit.register
        def cheat(): os._exit(0)
        def double(x): return x""",
    "a thread that answers later": """
        import threading
        def double(x):
            out = x.clone()
            threading.Timer(0.2, lambda: out.mul_(2)).start()
            return out""",
    "the first answer for all that follow": """
        kept = []
        def double(x):
            kept.append(2 * x if not kept else kept[0])
            return kept[0]""",
    "a copy of the first answer cut to size": """
        kept = {}
        def double(x): return kept.setdefault("y", 2 * x)[: len(x)].expand_as(x)""",
    "a view of the input": "def double(x): return x.view_as(x)",
    "the right answer, turned": "def double(x): return (2 * x).T",
    "one of the right answer's rows": "def double(x): return (2 * x)[:1].expand_as(x)",
    "ask for manual grading by deep nesting": """
        def double(x):
            out = []
            for _ in range(400): out = [out]
            return out""",
    "ask for manual grading by a huge integer": "def double(x): return 10 ** 4200",
    "ask for manual grading by odd text": "def double(x): raise ValueError('\\ud800\\x00\\x1b[2J')",
    "check that says yes": "def check(name): return 3.0\ncheck('double')",
    "full marks printed": "def double(x):\n    print('3.0')\n    return x\nprint('3.0')\n3.0",
}  # fmt: skip

HONEST = {
    "as asked": "def double(x): return 2 * x",
    "a sum": "def double(x): return x + x",
    "in place on a copy": "def double(x): return x.clone().mul_(2)",
    "NumPy": "import numpy as np\ndef double(x): return np.multiply(x.numpy(), 2)",
    "double precision": "def double(x): return 2 * x.double()",
    "a gradient on the way": "def double(x): return x.clone().requires_grad_() * 2",
    "a module": "class M(torch.nn.Module):\n    def forward(self, x): return 2 * x\ndouble = M()",
    "a class with a call": "class D:\n    def __call__(self, x): return 2 * x\ndouble = D()",
    "a partial": "from functools import partial\ndouble = partial(torch.mul, other=2)",
    "a lambda": "double = lambda x: 2 * x",
    "a decorator": "import functools\ndef same(f):\n    @functools.wraps(f)\n    def g(*a): return f(*a)\n    return g\n"
    "@same\ndef double(x): return 2 * x",
    "no gradients": "@torch.no_grad()\ndef double(x): return 2 * x",
    "another argument name": "def double(tensor, /): return 2 * tensor",
    "a default argument": "def double(x, factor=2): return factor * x",
    "loops": "def double(x):\n    out = torch.empty_like(x)\n    for i in range(len(x)):\n        out[i] = 2 * x[i]\n    return out",
    "an honest try": "def double(x):\n    try: return 2 * x\n    except RuntimeError: raise",
    "a fallback import": "try:\n    import cupy as np\nexcept ImportError:\n    import numpy as np\ndef double(x): return 2 * x",
    "warnings and prints": "import warnings\ndef double(x):\n    warnings.warn('careful')\n    print(x)\n    return 2 * x",
    "logging": "import logging\nlogging.basicConfig(level='DEBUG')\ndef double(x):\n    logging.error('x')\n    return 2 * x",
    "a display": "def double(x):\n    display(x)\n    return 2 * x",
    "timing": "%%time\ndef double(x): return 2 * x",
    "magics and shell lines": "%matplotlib inline\n!nvidia-smi\ndef double(x): return 2 * x",
    "a check of its own": "def double(x): return 2 * x\nassert torch.equal(double(torch.ones(1)), torch.full((1,), 2.0))",
    "a call to check": "from autograder import check\ndef double(x): return 2 * x\ncheck('double')",
    "plots": "def double(x):\n    import matplotlib.pyplot as plt\n    plt.plot(x); plt.show()\n    return 2 * x",
    "types": "from __future__ import annotations\ndef double(x: Tensor) -> Tensor: return 2 * x",
    "a dataclass": "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass F:\n    n: int = 2\n"
    "def double(x): return F().n * x",
    "a script within": "torch.jit._state.disable()\n@torch.jit.script\ndef helper(x):\n    return 2 * x\ndef double(x): return helper(x)",
    "a cache that is right": "kept = {}\ndef double(x): return kept.setdefault(x, 2 * x)",
    "global state": "calls = 0\ndef double(x):\n    global calls\n    calls += 1\n    return 2 * x",
    "threads": "from concurrent.futures import ThreadPoolExecutor\ndef double(x):\n    with ThreadPoolExecutor(4) as pool:\n"
    "        return torch.stack(list(pool.map(lambda row: 2 * row, x)))",
    "more threads for torch": "def double(x):\n    torch.set_num_threads(4)\n    return 2 * x",
    "a child process": "import subprocess\ndef double(x):\n    subprocess.run([sys.executable, '-c', ''], check=True)\n    return 2 * x",
    "a temporary file": "import tempfile\ndef double(x):\n    with tempfile.TemporaryFile() as f:\n        torch.save(x, f); f.seek(0)\n"
    "        return 2 * torch.load(f)",
    "a seed": "torch.manual_seed(0)\ndef double(x): return 2 * x + 0 * torch.randn_like(x)",
    "windows line ends": "def double(x):\r\n    return 2 * x\r\n",
    "tabs": "def double(x):\n\treturn 2 * x",
    "unicode": "def double(x):\n    α = 2  # twice, 两倍\n    return α * x",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def answered_before(bubble):
    """The server has judged a right answer on the same data, as it has the lesson's own before any student's."""
    assert verdict(bubble, "WORD = 'CANARY'\ndef double(x): return 2 * x").outcome is Outcome.PASSED


@pytest.mark.parametrize("source", CHEATS.values(), ids=CHEATS.keys())
def test_a_cheat_earns_nothing(bubble, source, request):
    found = verdict(bubble, source)
    assert found.outcome not in (Outcome.PASSED, Outcome.FAULT), found
    assert found.score == 0 or "visible shapes" in request.node.name


def test_the_scan_of_memory_finds_what_is_there(bubble):
    assert verdict(bubble, WALK + SCAN + "    WORD = 'CANARY'").outcome is Outcome.PASSED


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST.keys())
def test_an_honest_solution_passes(bubble, source):
    found = verdict(bubble, source)
    assert found.outcome is Outcome.PASSED, found.reason
    assert found.score == 3
