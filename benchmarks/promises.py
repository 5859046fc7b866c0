"""Does the grader keep what it promises? Ten figures, on attacks, forgeries, kills and faults.

    PYTHONPATH=. .venv/bin/python benchmarks/promises.py [NAME ...] [--quick]

Runs all promises, or those that are named, and writes the record after each, with its own date, device and versions.
`--quick` runs a tenth of each and writes nothing. The attacks and their honest twins are the files in `tests/attacks`.
Linux with bubblewrap only.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import faults
import record

from autograder.classroom.grade import Classroom
from autograder.classroom.grader import Grader
from autograder.classroom.scale import Here
from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.course.sample import Submission, render, rewrite, submissions, unfinished
from autograder.isolation.sandbox import Reply, default_isolation
from autograder.judging.cases import draw_cases
from autograder.judging.judge import judge, read_reply, verdict_from
from autograder.judging.program import Cell
from autograder.judging.verdict import Outcome, Verdict
from autograder.kernels.answers import Answers
from autograder.kernels.workers import KernelWorkers
from mla_ref.hardware.devices import DEVICES
from tests.attacks.test_attacks import ATTACKS, COURSE, FOLDER, HONEST, judged, name, read

ROOT = Path(__file__).parents[1]
SEED = "seed 9"  # of the tests of the attacks
WORKERS = os.cpu_count() or 1
Pool = ProcessPoolExecutor


def main(arguments: list[str]) -> None:
    """Measure and write the record, promise by promise."""
    quick, names = "--quick" in arguments, [each for each in arguments if each != "--quick"]
    if unknown := set(names) - set(PROMISES):
        sys.exit(f"there is no promise {min(unknown)!r}: expected some of {', '.join(PROMISES)}")
    if default_isolation() != "bubblewrap":
        sys.exit("the promises hold under bubblewrap, which does not work here: run `apt install bubblewrap`")
    found = record.earlier("promises").get("promises", {}) if names else {}
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        for each in names or PROMISES:
            started = time.monotonic()
            print(f"{each} …", flush=True)
            figures = PROMISES[each](pool, 0.1 if quick else 1.0)
            figures["seconds"] = round(time.monotonic() - started, 1)
            figures = {**record.origin(("triton",)), "workers": WORKERS, **figures}
            print(json.dumps(figures, indent=1), flush=True)
            found[each] = figures
            if not quick:
                kept = {promise: found[promise] for promise in PROMISES if promise in found}
                record.write("promises", {"promises": kept}, ("triton",))


def some(items: Sequence[Any], share: float) -> list[Any]:
    """Return a share of the items, evenly spread; at least two."""
    return list(items)[:: max(1, min(round(1 / share), len(items) // 2))]


# In a process of the pool: one place to judge, and a grader for each seed


@functools.cache
def _place() -> Here:
    return Here(COURSE, default_isolation(), modelled=True)


@functools.cache
def grader(seed: str = SEED) -> Grader:
    """Return the grader of this process that draws from a seed."""
    found = Grader(COURSE, None, modelled=True, place=_place())
    found.seed = seed
    return found


def verdicts(path: Path, seed: str = SEED) -> list[Verdict]:
    """Return the verdicts on the file of an attack or of an honest twin."""
    return judged(grader(seed), read(path))


def on_answers(path: Path) -> Verdict:
    """Return the verdict on the answers of a file."""
    return judged(grader(), replace(read(path), speed=False))[0]


def on_solution(exercise: str) -> list[Verdict]:
    """Return the verdicts on the lesson's own solution, on answers and on speed, none taken from memory."""
    lesson = COURSE.lesson(COURSE.locate(exercise)[0])
    own, jobs = grader(), [exercise, f"{exercise}:speed"][: 1 + bool(lesson.exercise(exercise).speed)]
    return [own.verdict(lesson, own.reference_job(lesson, each)) for each in jobs]


# The promises


def cheats(pool: Pool, share: float) -> dict[str, Any]:
    """Hand in every attack: none earns full marks, and none is a fault of the grader."""
    paths = sorted(some(ATTACKS, share), key=lambda path: path.parent.name != "stopping")  # those that take long first
    found = [each[-1] for each in pool.map(verdicts, paths)]
    accepted = [name(path) for path, each in zip(paths, found, strict=True) if each.score == each.points]
    return {"attacks": len(paths), "accepted": accepted, "grader_faults": _faulty(paths, found)}


def _faulty(paths: Sequence[Path], found: Sequence[Verdict]) -> list[str]:
    return [name(path) for path, each in zip(paths, found, strict=True) if each.outcome is Outcome.FAULT]


def honest(pool: Pool, share: float) -> dict[str, Any]:
    """Judge every honest twin, prints and warnings included, on the cases of 20 seeds."""
    paths, seeds = some(HONEST, share), [f"honest {n}" for n in range(20)]
    work = [(path, seed) for seed in (seeds if share == 1 else seeds[:2]) for path in paths]
    found = list(pool.map(verdicts, *zip(*work, strict=True), chunksize=len(paths)))
    rejected = [f"{name(path)}, {seed}" for (path, seed), each in zip(work, found, strict=True) if not _full(each)]
    return {"variants": len(paths), "seeds": len({seed for _, seed in work}), "rejected": rejected}


def _full(found: Sequence[Verdict]) -> bool:
    answers, *speed = found
    timed = all(each.outcome in (Outcome.PASSED, Outcome.PARTIAL, Outcome.SLOW) for each in speed)
    return answers.outcome is Outcome.PASSED and answers.score == answers.points and timed


def forged(pool: Pool, share: float) -> dict[str, Any]:
    """Give the judge random and forged replies, and forged programs of what a call does."""
    replies, programs, replayed = round(10_000 * share), round(5_000 * share), round(200 * share)
    futures = [pool.submit(forged_replies, replies), pool.submit(forged_programs, programs, replayed)]
    passed, crashes = zip(*(each.result() for each in futures), strict=True)
    figures = {"replies": replies, "programs": programs, "of_them_run_again": replayed}
    return {**figures, "passed": sum(passed), "crashes": [each for part in crashes for each in part]}


def forged_replies(count: int) -> tuple[int, list[str]]:
    """Return how many forged replies passed, and what the judge tripped over."""
    from autograder.isolation.sandbox import _read_reply
    from autograder.isolation.worker import wire
    from tests.autograder.isolation.test_wire import DOUBLE, forged

    rng, cases = random.Random(0), draw_cases(DOUBLE, "seed")
    wrong = [{"event": "case", "index": n, "result": c.arguments["x"] / 2, "changed": []} for n, c in enumerate(cases)]
    base, passed, crashes = b"".join(map(wire.encode, wrong)), 0, []
    for _ in range(count):
        data = forged(rng, base)
        try:
            reply = _read_reply(data, rng.choice(["exit", "time", "flood", "crowd", "memory"]), rng.choice([0, 9, 24]))
            passed += verdict_from(DOUBLE, cases, *read_reply(DOUBLE, cases, reply)).score != 0
        except Exception as error:
            crashes.append(repr(error)[:200])
    return passed, crashes


class OneReply:
    """Stands in for a sandbox: gives one reply to everybody."""

    def __init__(self, reply: Reply):
        self.reply = reply

    def run(self, request: Any, limits: Any) -> Reply:
        return self.reply


def forged_programs(count: int, replayed: int) -> tuple[int, list[str]]:
    """Damage the notes of a wrong kernel's calls. Return how many earned points, and what the judge tripped over.

    All are read; as many as `replayed` are run again too.
    """
    path = FOLDER / "honest" / "prints_and_warnings.py"
    cell = read(path).cell.replace("alpha * x + y", "alpha * x - y")
    assert cell != read(path).cell
    exercise, lesson = COURSE.locate("scale_add")[1], COURSE.lesson(COURSE.locate("scale_add")[0])
    program = [*lesson.setup, Cell("scale_add", cell)]
    rng, passed, crashes, replies = random.Random(0), 0, [], []
    with KernelWorkers() as workers:

        def keep(cases: Any, messages: Any) -> Any:
            replies.append({n: copy.deepcopy(dict(message)) for n, message in messages.items()})
            return {}, {}

        judge(exercise, program, SEED, workers.sandbox, keep)
        (messages,) = replies
        for number in range(count):
            lies = [damaged(rng, {**message, "event": "case", "index": n}) for n, message in messages.items()]
            settle = Answers(exercise, program, workers if number < replayed else Unanswered(workers))
            found = judge(exercise, program, SEED, OneReply(Reply("exit", 0, lies)), settle)
            passed += found.score not in (0, None)
            if found.outcome is Outcome.FAULT:
                crashes.append(found.reason[:200])
    return passed, crashes


class Unanswered:
    """Stands in for workers that run nothing again."""

    def __init__(self, workers: KernelWorkers):
        self.limits = workers.limits

    def perform(self, request: Any, seconds: float) -> tuple[Reply, Any]:
        return Reply("exit", 0), self.limits


def damaged(rng: random.Random, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with some values of its notes replaced, moved or left out."""
    from tests.autograder.isolation.test_wire import trees

    message = copy.deepcopy(message)
    for _ in range(rng.randint(1, 4)):
        inside, key = message, "notes"
        while isinstance(inside[key], dict | list) and inside[key] and rng.random() < 0.85:
            inside = inside[key]
            key = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        kind = rng.random()
        if kind < 0.15:
            del inside[key]
        elif kind < 0.3 and isinstance(inside, list):
            inside.insert(key, copy.deepcopy(rng.choice(inside)))
        elif kind < 0.6 and type(inside[key]) is int:
            inside[key] += rng.choice([-1, 1, 4, 1 << 20, 1 << 45])
        else:
            inside[key] = trees(rng)
        if not isinstance(message.get("notes"), dict | list):
            break
    return message


def stopping(pool: Pool, share: float) -> dict[str, Any]:
    """Judge each hang and bomb on a worker that is up: how long over the limit, and what lives on in its sandbox?"""
    paths = some([path for path in ATTACKS if path.parent.name == "stopping"], share)
    found = dict(zip(map(name, paths), pool.map(stopped, paths), strict=True))
    late = [each for each, (over, _) in found.items() if over > 2]
    return {
        "attacks": len(found),
        "most_seconds_over_the_limit": round(max(over for over, _ in found.values()), 2),
        "later_than_2_seconds": late,
        "survivors": sum(alive for _, alive in found.values()),
    }


def stopped(path: Path) -> tuple[float, int]:
    """Return by how many seconds an attack's verdict exceeds the limit, and how many of its processes are left."""
    own, entry = grader(), read(path)
    own.forget()
    judged(own, read(FOLDER / "honest" / "asserts_on_shapes.py"))
    spaces, started = _sandboxed(), time.monotonic()
    verdict = judged(own, entry)[-1]
    seconds = time.monotonic() - started
    assert verdict.score < verdict.points, verdict
    spaces |= _sandboxed()
    alive = sum(inner != 1 and space in spaces for space, inner, _ in _processes().values())
    return seconds - COURSE.locate(entry.exercise)[1].limits.seconds, alive


def _sandboxed() -> set[str]:
    """Return the namespaces of this process's sandboxes."""
    processes = _processes()
    mine = {pid for pid, (_, _, parent) in processes.items() if parent == os.getpid()}
    return {space for space, inner, parent in processes.values() if parent in mine and inner == 1}


def _processes() -> dict[int, tuple[str, int, int]]:
    """Return of each living process its namespace, its number in that, and its parent."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError):
            said = dict(line.split(":", 1) for line in (folder / "status").read_text(errors="replace").splitlines())
            if said["State"].split()[0] not in "ZX":
                space = os.readlink(folder / "ns" / "pid")
                found[int(folder.name)] = space, int(said["NSpid"].split()[-1]), int(said["PPid"])
    return found


def kills(pool: Pool, share: float) -> dict[str, Any]:
    """Kill `mla-course grade` at 200 random points, each run going on where the killed one was, until all is graded."""
    count = math.ceil(200 * share / WORKERS)
    parts = list(pool.map(killed, [count] * WORKERS, range(WORKERS)))
    keys = ("kills", "before_a_verdict", "before_a_record", "later", "submissions", "differing_grades")
    return {key: sum(part[key] for part in parts) for key in keys}


def killed(count: int, number: int) -> dict[str, int]:
    """Return the figures of so many kills; a class that is graded to the end is followed by a fresh one."""
    rng, found = random.Random(number), dict.fromkeys(("before_a_verdict", "before_a_record", "later"), 0)
    figures = {"kills": 0, "submissions": 0, "differing_grades": 0}
    with tempfile.TemporaryDirectory() as scratch:
        expected, seconds = _graded_once(Path(scratch) / "whole")
        for room in (Path(scratch) / str(n) for n in range(count + 1)):
            _small_class(room)
            ended = False
            while not ended:
                left = figures["kills"] < count
                ended = _grading(room, rng.uniform(0, seconds) if left else None)
                if ended and left:
                    seconds *= 0.9  # the first run took longer than those after it
                if not ended:
                    figures["kills"] += 1
                    stage = "before_a_record" if any((room / "verdicts").rglob("*.json")) else "before_a_verdict"
                    found["later" if any((room / "graded").rglob("*.json")) else stage] += 1
            grades = _grades(room)
            figures["submissions"] += len({key[0] for key, _ in expected})
            figures["differing_grades"] += len(set(grades) ^ set(expected)) + len(grades) - len(set(grades))
            shutil.rmtree(room)
            if figures["kills"] == count:
                break
    return figures | found


def _graded_once(room: Path) -> tuple[list[Any], float]:
    _small_class(room)
    started = time.monotonic()
    assert _grading(room)
    return _grades(room), time.monotonic() - started


def _small_class(room: Path) -> None:
    lesson = COURSE.lesson("00_start_here")
    for each in submissions(COURSE, lesson.name)[:3]:
        folder = room / "submitted" / each.student / lesson.name
        folder.mkdir(parents=True)
        (folder / f"{lesson.name}.ipynb").write_bytes(render(lesson, each))
    (room / "seed").write_text("of all these classes\n")


def _grading(room: Path, seconds: float | None = None) -> bool:
    """Grade in a process of its own, killed after some seconds; return whether it came to its end."""
    child = os.fork()
    if not child:
        try:
            os.setsid()
            with open(os.devnull, "w") as nowhere:
                for stream in (1, 2):
                    os.dup2(nowhere.fileno(), stream)
            from autograder import cli

            sys.argv = ["mla-course", "grade", "--jobs", "2", "--classroom", str(room)]
            cli.main()
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 0)
        finally:
            os._exit(70)
    deadline = time.monotonic() + (600 if seconds is None else seconds)
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) in (0, 1), f"grading ended with {status}"
            return True
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _grades(room: Path) -> list[tuple[tuple[str, str, str], float | None]]:
    """Return every grade in a gradebook, by student, lesson and exercise."""
    found = []
    with Classroom(COURSE, room).records.gradebook() as gradebook:
        for assignment in gradebook.assignments:
            for submission in assignment.submissions:
                for notebook in submission.notebooks:
                    for grade in notebook.grades:
                        key = submission.student_id, assignment.name, grade.name
                        found.append((key, None if grade.needs_manual_grade else grade.auto_score))
    return found


def interference(pool: Pool, share: float) -> dict[str, Any]:
    """Grade 100 honest submissions alone, and again between 20 hostile ones."""
    honest, hostile = honest_class(), hostile_class()
    honest, hostile = (some(sorted(each.items()), share) for each in (honest, hostile))
    rooms = [honest, honest + hostile]
    alone, beside = pool.map(graded_class, rooms)
    differing = sorted(student for student in alone if alone[student] != beside[student])
    return {"honest": len(honest), "hostile": len(hostile), "differing": differing}


def honest_class() -> dict[str, tuple[str, bytes]]:
    """Return a hundred notebooks by student, each with its lesson: twins of lesson 04, and lesson 00 done."""
    first, fourth = (COURSE.lesson(each) for each in ("00_start_here", "04_fused_norm_rope"))
    found = {}
    twins = [path for path in HONEST if COURSE.locate(read(path).exercise)[0] == fourth.name]
    for number, path in enumerate(twins):
        found[f"s{2 * number:03}-honest"] = fourth.name, _one_cell(fourth, path)
    number = len(twins)
    while len(found) < 100:
        cells = {each: f"{without_marks(source)}\n# by student {number}" for each, source in first.solutions.items()}
        patches = tuple(rewrite(each, source) for each, source in cells.items())
        found[f"s{2 * number:03}-honest"] = first.name, render(first, Submission("", "", patches))
        number += 1
    return found


def hostile_class() -> dict[str, tuple[str, bytes]]:
    """Return twenty hostile notebooks by student, each with its lesson: those that hang or swell, and that tamper."""
    groups = {each: [p for p in ATTACKS if p.parent.name == each] for each in ("stopping", "tampering")}
    heavy = ("fork_bomb", "endless_host_loop", "giant_allocation", "flood_of_output")
    paths = [p for p in groups["stopping"] if p.stem in heavy] + groups["tampering"][:16]
    found = {}
    for number, path in enumerate(paths):
        lesson = COURSE.lesson(COURSE.locate(read(path).exercise)[0])
        found[f"s{8 * number + 1:03}-hostile"] = lesson.name, _one_cell(lesson, path)
    return found


def _one_cell(lesson: Any, path: Path) -> bytes:
    """Return a notebook with one cell filled in, the others as they were handed out."""
    entry = read(path)
    others = tuple(unfinished(each) for each in lesson.solutions if each != entry.exercise)
    return render(lesson, Submission("", "", (*others, rewrite(entry.exercise, entry.cell))))


def graded_class(notebooks: Sequence[tuple[str, tuple[str, bytes]]]) -> dict[str, str]:
    """Grade a class, an exercise on each of two threads; return of each student the verdicts as text."""
    with tempfile.TemporaryDirectory() as scratch:
        room = Path(scratch)
        (room / "seed").write_text("of both classes\n")
        for student, (lesson, notebook) in notebooks:
            folder = room / "submitted" / student / lesson
            folder.mkdir(parents=True)
            (folder / f"{lesson}.ipynb").write_bytes(notebook)
        results = Classroom(COURSE, room).grade(jobs=2)
        found = {each.student: [v.to_json() | {"seconds": 0} for v in each.verdicts] for each in results}
    return {student: json.dumps(each, sort_keys=True) for student, each in found.items()}


def leaks(pool: Pool, share: float) -> dict[str, Any]:
    """Plant canaries in what is secret, and have submissions walk all that they can read."""
    planted, found, control, pages, shown = pool.submit(walked).result()
    return {
        "canaries": planted,
        "walks": len(found),
        "read_in_the_sandbox": sorted(set().union(*found) - control),
        "control_read": sorted(control & set.intersection(*found)),
        "pages": pages,
        "shown_in_feedback": shown,
    }


WALK = """
def search():
    import os, re, stat
    mark, found = re.compile(rb"CANARY-([a-z]+)-[0-9a-f]{16}"), set()
    built = "-".join(["CANARY", "own", "0123456789abcdef"])

    def look(data):
        found.update(match.decode() for match in mark.findall(data))

    for name, value in os.environb.items():
        look(name + value)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps, memory = open(f"/proc/{pid}/maps").read().splitlines(), open(f"/proc/{pid}/mem", "rb", 0)
        except OSError:
            continue
        for line in maps:
            span, rights, _, _, inode, *_ = line.split()
            start, end = (int(each, 16) for each in span.split("-"))
            if rights[0] != "r" or (inode != "0" and rights[1] != "w"):
                continue
            try:
                for place in range(start, end, 1 << 22):
                    memory.seek(place)
                    look(memory.read(min(end - place, (1 << 22) + 64)))
            except (OSError, ValueError, OverflowError):
                pass
    for top, folders, files in os.walk("/"):
        look(" ".join([*folders, *files]).encode(errors="replace"))
        for name in files:
            path = os.path.join(top, name)
            try:
                about = os.lstat(path)
                if stat.S_ISLNK(about.st_mode):
                    look(os.readlink(path).encode())
                proc = top.startswith("/proc")
                if not stat.S_ISREG(about.st_mode) or name in ("kcore", "kmsg", "pagemap", "mem", "kpagecount"):
                    continue
                if not proc and about.st_ctime < SINCE:
                    continue
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    look(os.read(handle, 1 << 20))
                finally:
                    os.close(handle)
            except OSError:
                pass
    return sorted(found)


told = []


def tell():
    told.append(told[0] if told else search())
    raise RuntimeError("found: " + " ".join(told[0]) + ".")
"""


def walked() -> tuple[int, list[set[str]], set[str], int, list[str]]:
    """Return the canaries, what each walk found, what it had to find, the pages, and canaries that a page shows."""
    from autograder.classroom.feedback import write_feedback

    marks = {
        each: f"CANARY-{each}-{random.randbytes(8).hex()}"
        for each in ("oracle", "solution", "seed", "gradebook", "classmate", "environment", "helper")
    }
    since = time.time() - 1
    with tempfile.TemporaryDirectory() as scratch:
        folder, name = Path(scratch), "01_vectors"
        shutil.copytree(ROOT / "tests" / "second_course", folder / "course")
        lesson = folder / "course" / "solutions" / name
        for path in (lesson / "exercises.py", folder / "course" / "solutions" / "oracles.py"):
            path.write_text(f'{path.read_text()}\nCANARY = "{marks["oracle"]}"\n')
        script = lesson / "lesson.py"
        script.write_text(
            script.read_text().replace("### BEGIN SOLUTION", f"### BEGIN SOLUTION\n    # {marks['solution']}")
        )
        (folder / "helpers").mkdir()
        (folder / "helpers" / "promised_helper.py").write_text(f'"""{marks["helper"]}"""\n')
        sys.path.append(str(folder / "helpers"))
        settings = folder / "course" / "solutions" / "course.toml"
        settings.write_text(f'{settings.read_text()}helpers = ["promised_helper"]\n')
        room, course = folder / "class", Course.at(folder / "course")
        room.mkdir()
        (room / "seed").write_text(f"{marks['seed']}\n")
        os.environ["PROMISED"] = marks["environment"]
        plan = course.lesson(name)
        walk = f"SINCE = {since}\n{WALK}"
        hidden = tuple(unfinished(each) for each in plan.solutions)  # a submission is made of the lesson's solutions
        handed_in = [
            Submission("ada", "", (*hidden, rewrite("mean", f"def mean(x): return 0  # {marks['classmate']}"))),
            Submission("eve", "", (*hidden, rewrite("mean", f"{walk}\ndef mean(x):\n    tell()"))),
            Submission("eva", "", (*hidden, rewrite("saxpy", f"{walk}\ndef saxpy(a, x, y):\n    tell()"))),
        ]
        classroom = Classroom(course, room, seconds=100)
        for each in handed_in:
            path = room / "submitted" / each.student / name
            path.mkdir(parents=True)
            (path / f"{name}.ipynb").write_bytes(render(plan, each))
            classroom.grade()
            with classroom.records.gradebook() as gradebook:
                gradebook.find_comment("mean", name, name, "ada").manual_comment = marks["gradebook"]
                gradebook.db.commit()
        results = {each.student: each for each in classroom.grade()}
        reasons = [
            next(v.reason for v in results[student].verdicts if v.exercise == exercise)
            for student, exercise in (("eve", "mean"), ("eva", "saxpy"))
        ]
        pages, problems = write_feedback(classroom)
        assert not problems, problems
        shown = [
            f"{kind} to {page.parts[-3]}"
            for page in pages
            for kind, mark in marks.items()
            if mark in page.read_text() and (page.parts[-3], kind) not in (("ada", "gradebook"), ("ada", "classmate"))
        ]
    told = [re.findall(r"found: ([a-z ]+)", reason) for reason in reasons]
    assert all(told), reasons
    control = {"helper", "own"}  # a file that is there for all, and a text in the walk's own memory
    return len(marks) - 1, [set(each[-1].split()) for each in told], control, len(pages), shown


def triton_ran(pool: Pool, share: float) -> dict[str, Any]:
    """Hand in decoys, fall-backs and torch in place of kernels; and every honest kernel there is."""
    fakes = some([path for path in ATTACKS if path.parent.name in ("decoys", "host", "code")], share)
    twins = some([path for path in HONEST if COURSE.locate(read(path).exercise)[1].kernel], share)
    solved = some(kernel_exercises(), share)
    missed = [name(p) for p, each in zip(fakes, pool.map(on_answers, fakes), strict=True) if each.score == each.points]
    flagged = [name(p) for p, each in zip(twins, pool.map(on_answers, twins), strict=True) if not _full([each])]
    flagged += [each for each, found in zip(solved, pool.map(on_solution, solved), strict=True) if not _full(found)]
    return {"fakes": len(fakes), "missed": missed, "honest_kernels": len(twins) + len(solved), "flagged": flagged}


def kernel_exercises(speed: bool = False) -> list[str]:
    """Return the names of the exercises with kernels, or of those with a speed too."""
    every = [each for lesson in COURSE.lesson_names() for each in COURSE.exercises(lesson)]
    return [each.name for each in every if each.kernel and (each.speed or not speed)]


REPEATED = ("scale_add", "rms_norm")  # whose speed is judged 50 times
TWINNED = ("scale_add", "rms_norm", "apply_rope", "masked_softmax", "combine_splits")  # bound by memory


def speed(pool: Pool, share: float) -> dict[str, Any]:
    """Model the same kernels 50 times, and beside twins that move 10 % more bytes."""
    repeats, seeds = max(2, round(50 * share)), max(1, round(5 * share))
    work = [(each, f"speed {n}") for each in REPEATED for n in range(repeats)]
    graded = list(pool.map(speed_of, *zip(*work, strict=True)))
    by_kernel = {each: [g for (n, _), g in zip(work, graded, strict=True) if n == each] for each in REPEATED}
    same = min(_most_common([(g[0], g[1]) for g in each]) for each in by_kernel.values())
    pairs = [(each, f"twin {n}") for each in TWINNED for n in range(seeds)]
    ratios = list(pool.map(slower_by, *zip(*pairs, strict=True)))
    again = [(each, "again") for each in TWINNED for _ in range(3)]
    bits = list(pool.map(speed_of, *zip(*again, strict=True)))
    by_twin = {each: {b for (n, _), b in zip(again, bits, strict=True) if n == each} for each in TWINNED}
    solved = [v[1] for v in pool.map(on_solution, some(kernel_exercises(speed=True), share))]
    modelled = [v.speed for v in solved if v.speed]  # kernels in Gluon have no modelled time
    times = [(g[2], g[3]) for g in graded + bits] + [(each["seconds"], each["floor"]) for each in modelled]
    return {
        "repeats": repeats,
        "kernels_repeated": list(REPEATED),
        "same_grade_percent": round(100 * same, 1),
        "pairs": len(pairs),
        "twins": list(TWINNED),
        "slower_twin_below_percent": round(100 * statistics.mean(ratio > 1 for ratio in ratios), 1),
        "twin_takes_times": [round(f(ratios), 3) for f in (min, statistics.median, max)],
        "identical_to_the_last_bit": all(len(each) == 1 for each in by_twin.values()),
        "modelled": len(times),
        "above_the_roofline": sum(seconds < floor for seconds, floor in times),
        "best_share_of_the_roofline": round(max(floor / seconds for seconds, floor in times), 3),
    }


def _most_common(items: Sequence[Any]) -> float:
    return max(map(items.count, items)) / len(items)


def speed_of(exercise: str, seed: str, more: str = "") -> tuple[float, str, float, float]:
    """Return score, outcome, seconds and floor of a solution's speed, `more` added to its cell, judged anew."""
    lesson = COURSE.lesson(COURSE.locate(exercise)[0])
    own = grader(seed)
    own.forget()
    for worker in own.place.workers:
        getattr(worker, "forget", lambda: None)()
    if not more:
        found = own.verdict(lesson, own.reference_job(lesson, f"{exercise}:speed"))
    else:
        from autograder.classroom.restore import clean_cells, restore

        patch = rewrite(exercise, without_marks(lesson.solutions[exercise]) + more)
        cells = json.loads(render(lesson, Submission("", "", (patch,))))["cells"]
        job = next(
            j for j in own.jobs(lesson, restore(lesson, list(clean_cells(cells)))) if j.name == f"{exercise}:speed"
        )
        found = own.verdict(lesson, job)
    assert found.speed, found
    return found.score, str(found.outcome), found.speed["seconds"], found.speed["floor"]


# Its launch costs too: beside a short kernel it takes more than 10 % longer, which the record tells
TWIN = """

@triton.jit
def more_kernel(src_ptr, dst_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst_ptr + i, tl.load(src_ptr + i, mask=i < n), mask=i < n)


plain = {name}


def {name}(*args, **kwargs):
    result = plain(*args, **kwargs)
    src = next(each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor))
    n = max(1, int(src.numel() * {share}))
    dst = torch.empty(n, dtype=src.dtype, device=src.device)
    more_kernel[(triton.cdiv(n, 1024),)](src, dst, n, BLOCK=1024)
    return result
"""


def slower_by(exercise: str, seed: str) -> float:
    """Return how many times as long a twin takes that copies so much besides that 10 % more bytes are moved."""
    each = COURSE.locate(exercise)[1]
    first = next(iter(each.inputs(None, **each.speed.case).values()))
    honest = speed_of(exercise, seed)
    bandwidth = DEVICES[each.speed.device].bandwidth()
    moved = max(each.speed.floor(**each.speed.case).bytes, 0)
    share = 0.05 * moved / first.nbytes  # read once, written once
    assert share <= 1, (exercise, share)
    assert moved / bandwidth > 0.9 * honest[3], f"{exercise} is not bound by memory"
    return speed_of(exercise, seed, TWIN.format(name=exercise, share=share))[2] / honest[2]


def named(pool: Pool, share: float) -> dict[str, Any]:
    """Inject faults of students and of the grader, and see what each is called."""
    injected = some(list(faults.FAULTS), share)
    found = dict(zip(injected, pool.map(faults.label, injected), strict=True))
    wrong = [f"{each}: {label}" for each, label in found.items() if label != faults.FAULTS[each][0]]
    kinds = {kind: sum(faults.FAULTS[each][0] == kind for each in injected) for kind in faults.KINDS}
    return {"faults": len(injected), "of_each": kinds, "wrong_labels": wrong}


PROMISES: dict[str, Callable[[Pool, float], dict[str, Any]]] = {
    "cheats": cheats,
    "honest": honest,
    "forged": forged,
    "stopping": stopping,
    "kills": kills,
    "interference": interference,
    "leaks": leaks,
    "triton_ran": triton_ran,
    "speed": speed,
    "faults": named,
}

if __name__ == "__main__":
    main(sys.argv[1:])
