"""Collecting a platform's download: every file goes to its student's folder, or the output says why it does not."""

import errno
import io
import json
import os
import shutil
import stat
import zipfile

import pytest

from autograder.classroom.archives import LONG, MAX_BYTES, MAX_MEMBERS, MAX_NOTEBOOKS, MAX_UNPACKED, files
from autograder.classroom.collect import CollectError, collect, hand_back
from autograder.classroom.export import table
from autograder.classroom.feedback import write_feedback
from autograder.course.course import Course
from autograder.judging.verdict import Outcome

from ..tiny_course import NAME, RIGHT, WRONG, notebook

BOOK = f"{NAME}.ipynb"
RIGHT_BOOK, WRONG_BOOK = (json.dumps(notebook(**each)).encode() for each in (RIGHT, WRONG))
OTHER = {"cells": [{"cell_type": "code", "id": "rms_norm", "metadata": {}, "source": "", "outputs": []}]}


def _zip(target, members, kind=zipfile.ZIP_DEFLATED, **times):
    with zipfile.ZipFile(target, "w", kind) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, times.get(name.split("_")[0], (2026, 12, 24, 10, 0, 0)))
            info.compress_type = kind
            archive.writestr(info, content)
    return target


def _packed(members, kind=zipfile.ZIP_DEFLATED):
    return _zip(io.BytesIO(), members, kind).getvalue()


def _enrol(room, **people):
    with room.records.gradebook() as gradebook:
        for student, keys in people.items():
            gradebook.add_student(student, **keys)


def _there(room):
    books = room.submitted.glob("*/*/*.ipynb")
    return {path.parts[-3]: path.read_bytes() for path in books if not path.name.startswith(".")}


def _refused(taken):
    return {each.file: each.why for each in taken if each.what == "refused"}


def test_a_moodle_download_of_folders(tiny_room, tmp_path):
    members = {
        f"Zoë O'Brien-Li_101_assignsubmission_file_/{BOOK}": RIGHT_BOOK,
        "Ben de la Cruz_102_assignsubmission_file/work/final version (2).IPYNB": WRONG_BOOK,
        "Cleo_103_assignsubmission_file_/all of it.zip": _packed(
            {f"mine/{BOOK}": RIGHT_BOOK, "__MACOSX/._x.ipynb": ""}
        ),
        "Cleo_103_assignsubmission_onlinetext_/onlinetext.html": "<p>see the file</p>",
        "Dan_104_assignsubmission_file_/essay.pdf": b"%PDF",
    }
    taken = collect(tiny_room, [_zip(tmp_path / "moodle.zip", members)])
    assert _there(tiny_room) == {"Zoë_O_Brien-Li": RIGHT_BOOK, "Ben_de_la_Cruz": WRONG_BOOK, "Cleo": RIGHT_BOOK}
    assert _refused(taken) == {"Dan_104/essay.pdf": "nothing of it is a notebook"}
    assert {result.student: result.score for result in tiny_room.grade()}["Zoë_O_Brien-Li"] == 5


def test_a_flat_moodle_download_of_students_that_the_gradebook_knows(tiny_room, tmp_path):
    _enrol(tiny_room, zl1={"first_name": "Zoë", "last_name": "Li"}, bc2={"first_name": "Ben", "last_name": "Cruz"})
    members = {
        f"Zoe Li_7_assignsubmission_file_{BOOK}": RIGHT_BOOK,
        f"Cruz Ben_8_assignsubmission_file_{BOOK}": WRONG_BOOK,
    }
    collect(tiny_room, [_zip(tmp_path / "flat.zip", members)])
    assert _there(tiny_room) == {"zl1": RIGHT_BOOK, "bc2": WRONG_BOOK}


def test_a_canvas_download_takes_the_last_attempt_and_says_which_is_late(tiny_room, tmp_path):
    _enrol(tiny_room, ada={"lms_user_id": "340934"})
    members = {
        f"lovelaceada_340934_208490284_{BOOK}": WRONG_BOOK,
        f"lovelaceada_340934_208490999_{NAME}-1.ipynb": RIGHT_BOOK,
        f"boole_LATE_340935_208490300_{BOOK}": WRONG_BOOK,
        "boole_LATE_340935_208490301_shot.png": b"",
    }
    taken = collect(tiny_room, [_zip(tmp_path / "canvas.zip", members)])
    assert _there(tiny_room) == {"ada": RIGHT_BOOK, "boole_340935": WRONG_BOOK}
    assert not _refused(taken)
    assert [each.student for each in taken if "late" in each.why] == ["boole_340935"]
    tiny_room.grade()
    _, _, *students = table(tiny_room, "canvas")
    assert {(row[3], row[1]) for row in students} == {("ada", "340934"), ("boole_340935", "340935")}  # login, ID


def test_feedback_goes_back_to_a_platform_under_the_names_of_its_download(tiny_room, tmp_path):
    members = {
        f"Zoë Li_101_assignsubmission_file_/{BOOK}": RIGHT_BOOK,
        "Cleo Po_103_assignsubmission_file_/all of it.zip": _packed({"mine/final.version.ipynb": WRONG_BOOK}),
        f"liada_340934_208490284_{BOOK}": RIGHT_BOOK,
        f"Ben Cruz_102_assignsubmission_file_{BOOK}": WRONG_BOOK,
    }
    source = _zip(tmp_path / "download.zip", members)
    collect(tiny_room, [source], lesson=NAME)
    tiny_room.grade()
    write_feedback(tiny_room)
    late = _zip(tmp_path / "later.zip", {**members, f"Dan_104_assignsubmission_file_/{BOOK}": RIGHT_BOOK})
    told = hand_back(tiny_room, late, tmp_path / "back.zip", NAME)
    assert [(each.student, "collect and grade it first" in each.why) for each in told if not each.good] == [
        ("Dan", True)
    ]
    with zipfile.ZipFile(tmp_path / "back.zip") as archive:
        pages = {name: archive.read(name).decode() for name in archive.namelist()}
    assert {name: "halved" in page for name, page in pages.items()} == {
        f"Zoë Li_101_assignsubmission_file_/{NAME}.html": False,
        "Cleo Po_103_assignsubmission_file_/final.version.html": True,
        f"liada_340934_208490284_{NAME}.html": False,
        f"Ben Cruz_102_assignsubmission_file_{NAME}.html": True,
    }


def test_pages_go_to_no_archive_while_another_run_is_at_work(tiny_room, tmp_path):
    """Who holds the lock clears away what others have put aside."""
    source = _zip(tmp_path / "in.zip", {f"ada/{BOOK}": RIGHT_BOOK, f"bo/{BOOK}": RIGHT_BOOK})
    with tiny_room.locked(), pytest.raises(BlockingIOError, match="another run is at work"):
        hand_back(tiny_room, source, tmp_path / "back.zip")
    assert not (tmp_path / "back.zip").exists()


@pytest.mark.parametrize(
    "mapping",
    [
        "student_id;number\nzoe;101\nben;102\n",
        "Identifier,Full name,Email address\nParticipant 101,Ann Li,zoe\nParticipant 102,Ann Li,ben\n",
        "\ufeffStudent,ID,SIS Login ID\nPoints Possible,,\nX,101,zoe\nY,102,ben\n",
    ],
)
def test_a_file_says_who_is_who(tiny_room, tmp_path, mapping):
    (tmp_path / "who.csv").write_text(mapping)
    members = {f"Ann Li_{n}_assignsubmission_file_/{BOOK}": RIGHT_BOOK for n in (101, 102)}
    archive = _zip(tmp_path / "moodle.zip", members)
    assert all("tell them apart by --mapping" in why for why in _refused(collect(tiny_room, [archive])).values())
    assert not _there(tiny_room)
    collect(tiny_room, [archive], mapping=tmp_path / "who.csv")
    assert set(_there(tiny_room)) == {"zoe", "ben"}


def test_a_files_name_that_is_no_text_keeps_nobodys_page_back(tiny_room, tmp_path):
    for name in (f"ada/{BOOK}".encode(), b"bo/x\xff.ipynb"):
        path = os.path.join(os.fsencode(tmp_path), b"in", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(RIGHT_BOOK)
    collect(tiny_room, [tmp_path / "in"], lesson=NAME)
    tiny_room.grade()
    write_feedback(tiny_room)
    assert {each.what for each in hand_back(tiny_room, tmp_path / "in", tmp_path / "back.zip", NAME)} == {"new"}
    assert len(zipfile.ZipFile(tmp_path / "back.zip").namelist()) == 2


@pytest.mark.parametrize("mapping", ["a,b\n1,2\n", b"student_id,number\n\xff,1\n"])
def test_a_file_that_says_no_such_thing_is_refused_whole(tiny_room, tmp_path, mapping):
    (tmp_path / "who.csv").write_bytes(mapping if isinstance(mapping, bytes) else mapping.encode())
    archive = _zip(tmp_path / "moodle.zip", {f"Ann Li_1_assignsubmission_file_/{BOOK}": RIGHT_BOOK})
    with pytest.raises(CollectError, match=r"who\.csv"):
        collect(tiny_room, [archive], mapping=tmp_path / "who.csv")


def test_a_row_that_names_no_student_costs_that_student_alone(tiny_room, tmp_path):
    """Moodle's worksheet has who has no username by e-mail, and a column of what students wrote, however long."""
    essay = "a b\n" * 50_000
    rows = f'Participant 1,i.o\'brien@x.org,"{essay}"\nParticipant 2,ada@x.org,-\n'
    (tmp_path / "who.csv").write_text("Identifier,Email address,Online text\n" + rows)
    members = {f"Ann Li_{n}_assignsubmission_file_/{BOOK}": RIGHT_BOOK for n in (1, 2)}
    taken = collect(tiny_room, [_zip(tmp_path / "moodle.zip", members)], mapping=tmp_path / "who.csv")
    assert list(_there(tiny_room)) == ["ada@x.org"]
    (why,) = _refused(taken).values()
    assert "i.o'brien@x.org" in why


def test_a_name_in_the_gradebook_that_can_be_no_folder_is_told_with_what_to_do(tiny_room, tmp_path):
    _enrol(tiny_room, **{"Ada Li": {}})
    members = {f"{name}_{n}_assignsubmission_file_/{BOOK}": RIGHT_BOOK for n, name in enumerate(("Ada Li", "Bo"))}
    archive = _zip(tmp_path / "in.zip", members)
    (why,) = _refused(collect(tiny_room, [archive])).values()
    assert "who Ada Li is in the gradebook, cannot be a student's name" in why and "by --mapping" in why
    (tmp_path / "who.csv").write_text("student_id,name\nada,Ada Li\n")
    assert not _refused(collect(tiny_room, [archive], mapping=tmp_path / "who.csv"))
    assert set(_there(tiny_room)) == {"ada", "Bo"}


def test_folders_of_students_in_a_folder(tiny_room, tmp_path):
    for path, content in ((f"ada/{NAME}/{BOOK}", RIGHT_BOOK), ("ben/mine.ipynb", WRONG_BOOK), (BOOK, RIGHT_BOOK)):
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / path).write_bytes(content)
    (tmp_path / "in" / "eve").mkdir()
    (tmp_path / "in" / "eve" / BOOK).symlink_to(tmp_path / "in" / "ada" / NAME / BOOK)
    os.mkfifo(tmp_path / "in" / "eve" / "pipe.ipynb")
    taken = collect(tiny_room, [tmp_path / "in"])
    assert _there(tiny_room) == {"ada": RIGHT_BOOK, "ben": WRONG_BOOK}
    assert len(_refused(taken)) == 3
    assert "does not say whose it is" in _refused(taken)[BOOK]


def test_a_students_folder_that_is_not_read_is_named_and_costs_nobody_else(tiny_room, tmp_path, monkeypatch, deepen):
    place, real = tmp_path / "in", os.listdir
    for student in ("ada", "deb", "eve"):
        (place / student).mkdir(parents=True)
        (place / student / BOOK).write_bytes(RIGHT_BOOK)
    (place / "zed").symlink_to(place / "ada")
    deepen(place / "deb")

    def listdir(path):
        if path == place / "eve":
            raise PermissionError(13, "Permission denied", str(path))  # a test may be run by root, who may read all
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    taken = collect(tiny_room, [place])
    assert _there(tiny_room) == {"ada": RIGHT_BOOK, "deb": RIGHT_BOOK}
    assert _refused(taken) == {
        "deb/a/a/a/a": LONG,
        "eve": "it cannot be read: Permission denied",
        "zed": "it is a link, which is not followed",
    }


def test_nobody_hands_in_for_another_by_a_files_name(tiny_room, tmp_path):
    _enrol(tiny_room, ben={"lms_user_id": "6", "first_name": "Ben", "last_name": "Cruz"})
    (tmp_path / "who.csv").write_text("student_id,number\neve,5\nben,6\n")
    mine, other = f"Ben_6_assignsubmission_file_{BOOK}", f"cruzben_6_7_{BOOK}"
    flat = {f"Eve_5_assignsubmission_file_{mine}": WRONG_BOOK}
    folders = {f"ada/{BOOK}": RIGHT_BOOK, f"cleo/{BOOK}": RIGHT_BOOK, f"eve/{other}": WRONG_BOOK}
    packed = {"eve_5_7_all.zip": _packed({other: WRONG_BOOK}), f"ada_4_8_{BOOK}": RIGHT_BOOK}
    for members in (flat, folders, packed):
        collect(tiny_room, [_zip(tmp_path / "in.zip", members)], mapping=tmp_path / "who.csv")
        assert "ben" not in _there(tiny_room)
        assert _there(tiny_room)["eve"] == WRONG_BOOK


@pytest.mark.parametrize(
    "name",
    [
        f"mal_6_9003_x_5_assignsubmission_file_{BOOK}",  # a file that is called as in Moodle's downloads
        f"m_5_9_6_9003_{NAME}-99.ipynb",  # a name with the victim's number
        f"m_5_6_9003_{NAME}-99.ipynb",
    ],
)
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_nobody_hands_in_for_another_by_a_number_in_canvas(tiny_room, tmp_path, name, mapped, known):
    if known:
        _enrol(tiny_room, vic={"lms_user_id": "5"}, mal={"lms_user_id": "6"})
    (tmp_path / "who.csv").write_text("student_id,number\nvic,5\nmal,6\n")
    mapping = tmp_path / "who.csv" if mapped else None
    collect(tiny_room, [_zip(tmp_path / "1.zip", {name: WRONG_BOOK, f"ada_7_9001_{BOOK}": RIGHT_BOOK})], NAME, mapping)
    assert "vic" not in _there(tiny_room)
    taken = collect(tiny_room, [_zip(tmp_path / "2.zip", {f"vic_5_9002_{BOOK}": RIGHT_BOOK})], NAME, mapping)
    victims = [student for student in _there(tiny_room) if student.startswith("vic")]
    if known or mapped or "assignsubmission" in name:
        assert [_there(tiny_room)[student] for student in victims] == [RIGHT_BOOK]
    else:  # the number was taken before anybody knew whose it is: a person tells them apart
        assert not victims
        assert "say who it is by --mapping" in "".join(_refused(taken).values())
    both = {name: WRONG_BOOK, f"vic_5_9002_{BOOK}": WRONG_BOOK}
    collect(tiny_room, [_zip(tmp_path / "3.zip", both)], NAME, mapping)
    assert all(_there(tiny_room)[student] in (RIGHT_BOOK, WRONG_BOOK) for student in victims)


@pytest.mark.parametrize(
    ("one", "other"),
    [("Nguyễn Văn Tú", "Nguyễn Văn Tư"), ("राम", "रोम"), ("กิตติ", "กัตติ"), ("がとう", "かとう"), ("রাম", "রোম")],
)
def test_names_that_differ_by_marks_alone_are_of_two_students(tiny_room, tmp_path, one, other):
    for n, (name, content) in enumerate(((one, RIGHT_BOOK), (other, WRONG_BOOK))):
        member = f"{name}_{n}_assignsubmission_file_/{BOOK}"
        taken = collect(
            tiny_room, [_zip(tmp_path / f"{n}.zip", {member: content, f"Al_9{n}_assignsubmission_file_/x": b""})]
        )
        assert not [each for each in taken if each.what == "replaced"]
        _enrol(tiny_room, **{name.replace(" ", "_"): {}})
    assert _there(tiny_room) == {one.replace(" ", "_"): RIGHT_BOOK, other.replace(" ", "_"): WRONG_BOOK}


def test_a_name_without_its_accents_is_the_students(tiny_room, tmp_path):
    _enrol(tiny_room, tu={"first_name": "Văn Tú", "last_name": "Nguyễn"})
    names = {f"nguyenvantu_1_2_{BOOK}": RIGHT_BOOK, f"ada_3_4_{BOOK}": RIGHT_BOOK}
    collect(tiny_room, [_zip(tmp_path / "canvas.zip", names)])
    assert "tu" in _there(tiny_room)


def test_a_hidden_notebook_is_told_where_there_is_no_other(tiny_room, tmp_path):
    members = {f"{who}/{name}": RIGHT_BOOK for who, name in (("ada", f".{BOOK}"), ("bo", BOOK), ("bo", f".{BOOK}"))}
    archive = _zip(tmp_path / "in.zip", members)
    zipfile.ZipFile(archive).extractall(tmp_path / "in")
    for source in (archive, tmp_path / "in"):
        refused = _refused(collect(tiny_room, [source]))
        assert list(refused) == [f"ada/.{BOOK}"]
        assert "hidden" in refused[f"ada/.{BOOK}"]


@pytest.mark.parametrize(
    "only",
    [f".work/{BOOK}", f".ipynb_checkpoints/{NAME}-checkpoint.ipynb", f"__MACOSX/{BOOK}", "desktop.ini", "", "work/"],
)
@pytest.mark.parametrize("platform", ["{}_{}_assignsubmission_file_/", "{}_{}_5_work.zip/", "{}/"])
def test_a_submission_of_which_nothing_is_in_sight_has_a_line(tiny_room, tmp_path, only, platform):
    """Beside a notebook, or behind the names that a Mac gives to all, the same is nothing to be told."""
    ada, eve = platform.format("ada", 1), platform.format("eve", 3)
    members = {f"{ada}{BOOK}": RIGHT_BOOK, f"{ada}{only}": b"", f"__MACOSX/{ada}._{BOOK}": b"", f"{eve}{only}": b""}
    members["__MACOSX/._ada_1_5_work.ipynb"] = b""
    archive = _zip(tmp_path / "in.zip", members)
    zipfile.ZipFile(archive).extractall(tmp_path / "in")
    for source in (archive, tmp_path / "in"):
        refused = _refused(collect(tiny_room, [source], lesson=NAME))
        (file,) = refused
        assert file.startswith("eve")
        assert ("hidden" in refused[file]) == only.startswith(".")
        assert len(_there(tiny_room)) == 1


@pytest.mark.parametrize("form", ["{}_{}_assignsubmission_file_/", "{}_{}_assignsubmission_file_"])
def test_who_is_called_as_a_hidden_file_has_a_line(tiny_room, tmp_path, form):
    members = {f"{form.format(name, n)}{BOOK}": RIGHT_BOOK for n, name in enumerate(("ada", "bo", ". Eve"))}
    (file,) = _refused(collect(tiny_room, [_zip(tmp_path / "in.zip", members)]))
    assert file.startswith(". Eve")
    assert set(_there(tiny_room)) == {"ada", "bo"}


@pytest.mark.parametrize("name", ["timestamp.txt", "submission_secret.txt", BOOK])
def test_a_folder_where_a_file_belongs_costs_its_own_student_alone(tiny_room, tmp_path, name):
    (tiny_room.submitted / "bo" / NAME / name).mkdir(parents=True)
    before = sorted(tiny_room.submitted.glob("bo/*/*"))
    members = {f"{who}/{NAME}/{BOOK}": RIGHT_BOOK for who in ("ada", "bo", "zed")}
    taken = collect(tiny_room, [_zip(tmp_path / "in.zip", members)])
    assert {"ada", "zed"} <= {path.parts[-3] for path in tiny_room.submitted.glob(f"*/*/{BOOK}") if path.is_file()}
    (why,) = _refused(taken).values()
    assert f"submitted/bo/{NAME} cannot be written" in why
    assert sorted(tiny_room.submitted.glob("bo/*/*")) == before


def test_a_time_beyond_the_calendar_is_none(tiny_room, tmp_path, monkeypatch):
    (tmp_path / "in" / "ada").mkdir(parents=True)
    (tmp_path / "in" / "ada" / BOOK).write_bytes(RIGHT_BOOK)
    real = os.lstat

    def lstat(path, **given):  # as file systems with 64-bit times say
        found = list(real(path, **given))
        found[stat.ST_MTIME] = 10**12
        return os.stat_result(found)

    monkeypatch.setattr("autograder.classroom.archives.os.lstat", lstat)
    collect(tiny_room, [tmp_path / "in"], lesson=NAME, timestamps=True)
    assert _there(tiny_room) == {"ada": RIGHT_BOOK}


@pytest.mark.parametrize(
    "inside",
    [f"bo/{BOOK}", "bo.zip", f"bo_1_assignsubmission_file_{BOOK}", f"bo_1_2_{BOOK}", f"export/bo/{BOOK}"],
)
@pytest.mark.parametrize("known", [True, False])
def test_the_folders_of_one_students_work_are_no_students(tiny_room, tmp_path, inside, known):
    _enrol(tiny_room, **({"ada": {}, "bo": {}} if known else {"bo": {}}))
    content = _packed({BOOK: WRONG_BOOK}) if inside.endswith(".zip") else WRONG_BOOK
    taken = collect(tiny_room, [_zip(tmp_path / "late.zip", {f"ada/{inside}": content})], lesson=NAME)
    assert _there(tiny_room) == ({"ada": WRONG_BOOK} if known else {})
    if not known:
        (why,) = _refused(taken).values()
        assert "one student's work alone, of ada or" in why


def test_two_who_bear_the_name_of_one_in_the_gradebook_are_told_apart_by_a_person(tiny_room, tmp_path):
    _enrol(tiny_room, ben={"first_name": "Ben", "last_name": "Cruz"})
    members = {f"Ben Cruz_{n}_assignsubmission_file_/{name}": RIGHT_BOOK for n, name in ((5, "x.ipynb"), (6, BOOK))}
    taken = collect(tiny_room, [_zip(tmp_path / "in.zip", members)])
    assert not _there(tiny_room)
    assert all("several of the platform's students would be ben" in why for why in _refused(taken).values())


def _of_moodle(target, name, number, content):
    """Make a download with a student's notebook, and that of another student."""
    members = {name: content, "Cleo": RIGHT_BOOK}
    numbers = {name: number, "Cleo": 900}
    return _zip(target, {f"{n}_{numbers[n]}_assignsubmission_file_/{BOOK}": book for n, book in members.items()})


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_a_namesake_in_a_second_archive_replaces_nobody(tiny_room, tmp_path, known, together):
    if known:
        _enrol(tiny_room, Ann_Li={"first_name": "Ann", "last_name": "Li"})
    first = _of_moodle(tmp_path / "group 1.zip", "Ann Li", 101, RIGHT_BOOK)
    second = _of_moodle(tmp_path / "group 2.zip", "Ann Li", 102, WRONG_BOOK)
    for sources in [[first, second]] if together else [[first], [second]]:
        taken = collect(tiny_room, sources)
    (why,) = _refused(taken).values()
    assert "Ann Li with the number 102 may be another than the one with the number 101" in why
    assert "--mapping" in why
    assert _there(tiny_room) == {"Ann_Li": RIGHT_BOOK, "Cleo": RIGHT_BOOK}
    assert not list((tiny_room.submitted / "Ann_Li" / NAME).glob(".*"))


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_who_differs_from_another_by_upper_case_alone_replaces_nobody(tiny_room, tmp_path, folding, together, mapped):
    members = {
        f"{name}_{n}_assignsubmission_file_/{BOOK}": content
        for n, (name, content) in enumerate((("Zoé Li", RIGHT_BOOK), ("zoé li", WRONG_BOOK)), 11)
    }
    mapping = tmp_path / "who.csv" if mapped else None
    if mapped:
        mapping.write_text("student_id,number\nZoé_Li,11\nzoé_li,12\n")
    each = [members] if together else [{name: content} for name, content in members.items()]
    taken = [t for n, m in enumerate(each) for t in collect(tiny_room, [_zip(tmp_path / f"{n}", m)], mapping=mapping)]
    assert [(each.student, each.what) for each in taken if each.what != "refused"] == [("Zoé_Li", "new")]
    (why,) = _refused(taken).values()
    assert "zoé_li and Zoé_Li are one folder here" in why
    assert list(_there(tiny_room).values()) == [RIGHT_BOOK]
    again = collect(tiny_room, [_zip(tmp_path / "again", members)], mapping=mapping)
    assert sorted(each.what for each in again) == ["refused", "unchanged"]


def test_who_hands_in_again_replaces_their_own(tiny_room, tmp_path):
    for content in (WRONG_BOOK, RIGHT_BOOK):
        taken = collect(tiny_room, [_of_moodle(tmp_path / "moodle.zip", "Ann Li", 101, content)])
        assert not _refused(taken)
    assert _there(tiny_room)["Ann_Li"] == RIGHT_BOOK


def test_a_mapping_by_number_keeps_namesakes_of_two_archives_apart_or_says_they_are_one(tiny_room, tmp_path):
    collect(tiny_room, [_of_moodle(tmp_path / "1.zip", "Ann Li", 101, RIGHT_BOOK)])
    second = _of_moodle(tmp_path / "2.zip", "Ann Li", 102, WRONG_BOOK)
    (tmp_path / "by name.csv").write_text("student_id,name\nAnn_Li,Ann Li\n")
    assert _refused(collect(tiny_room, [second], mapping=tmp_path / "by name.csv"))
    (tmp_path / "who.csv").write_text("student_id,number\nann2,102\n")
    collect(tiny_room, [second], mapping=tmp_path / "who.csv")
    assert _there(tiny_room) == {"Ann_Li": RIGHT_BOOK, "ann2": WRONG_BOOK, "Cleo": RIGHT_BOOK}
    (tmp_path / "who.csv").write_text("student_id,number\nAnn_Li,102\n")
    collect(tiny_room, [second], mapping=tmp_path / "who.csv")
    assert _there(tiny_room)["Ann_Li"] == WRONG_BOOK
    assert not _refused(collect(tiny_room, [second])), "which number is Ann_Li's is known from then on"


def test_a_submission_that_was_removed_is_in_no_namesakes_way(tiny_room, tmp_path):
    collect(tiny_room, [_of_moodle(tmp_path / "1.zip", "Ann Li", 101, RIGHT_BOOK)])
    shutil.rmtree(tiny_room.submitted / "Ann_Li")
    assert not _refused(collect(tiny_room, [_of_moodle(tmp_path / "2.zip", "Ann Li", 102, WRONG_BOOK)]))
    assert _there(tiny_room)["Ann_Li"] == WRONG_BOOK


def test_a_namesake_in_canvas_replaces_nobody(tiny_room, tmp_path):
    _enrol(tiny_room, al1={"first_name": "Ann", "last_name": "Li"})
    for number, content in ((5, RIGHT_BOOK), (6, WRONG_BOOK)):
        members = {f"liann_{number}_90_{BOOK}": content, f"pocleo_7_91_{BOOK}": RIGHT_BOOK}
        taken = collect(tiny_room, [_zip(tmp_path / f"{number}.zip", members)])
    assert _there(tiny_room)["al1"] == RIGHT_BOOK
    assert "liann with the number 6" in "".join(_refused(taken).values())


def test_a_namesake_is_handed_nobody_elses_feedback(tiny_room, tmp_path):
    collect(tiny_room, [_of_moodle(tmp_path / "1.zip", "Ann Li", 101, RIGHT_BOOK)])
    tiny_room.grade()
    write_feedback(tiny_room)
    second = _of_moodle(tmp_path / "2.zip", "Ann Li", 102, WRONG_BOOK)
    told = hand_back(tiny_room, second, tmp_path / "back.zip")
    assert len(_refused(told)) == 1
    assert [name.split("_")[0] for name in zipfile.ZipFile(tmp_path / "back.zip").namelist()] == ["Cleo"]


def test_a_dry_run_remembers_nobodys_number(tiny_room, tmp_path):
    collect(tiny_room, [_of_moodle(tmp_path / "1.zip", "Ann Li", 101, RIGHT_BOOK)], dry=True)
    assert not _refused(collect(tiny_room, [_of_moodle(tmp_path / "2.zip", "Ann Li", 102, WRONG_BOOK)]))


@pytest.mark.parametrize("content", ["{", "[]", '{"90_tiny": 3}'])
def test_a_damaged_file_of_what_was_collected_is_told(tiny_room, tmp_path, content):
    (tiny_room.folder / "collected.json").write_text(content)
    with pytest.raises(CollectError, match=r"collected\.json is damaged .*: mend or remove it"):
        collect(tiny_room, [_of_moodle(tmp_path / "1.zip", "Ann Li", 101, RIGHT_BOOK)])


def test_collecting_again_changes_nothing_and_what_is_replaced_is_kept(tiny_room, tmp_path):
    name = f"ada/{NAME}/{BOOK}"
    first = _zip(tmp_path / "1.zip", {name: WRONG_BOOK})
    assert [each.what for each in collect(tiny_room, [first])] == ["new"]
    clock = tiny_room.submitted / "ada" / NAME / "timestamp.txt"
    clock.write_text("2026-12-24 10:00:00 UTC")
    assert [each.what for each in collect(tiny_room, [first])] == ["unchanged"]
    assert clock.exists()
    second = _zip(tmp_path / "2.zip", {name: RIGHT_BOOK})
    assert [each.what for each in collect(tiny_room, [second], dry=True)] == ["replaced"]
    assert _there(tiny_room) == {"ada": WRONG_BOOK}
    assert [each.what for each in collect(tiny_room, [second])] == ["replaced"]
    assert not clock.exists(), "it was that of what is replaced"
    hidden = [path.read_bytes() for path in clock.parent.glob(".*.ipynb")]
    assert (hidden, _there(tiny_room)) == ([WRONG_BOOK], {"ada": RIGHT_BOOK})


def test_what_a_full_disk_leaves_there_keeps_its_time(tiny_room, tmp_path, monkeypatch):
    """Without it, a late notebook counts as in time."""
    name, folder = f"ada/{NAME}/{BOOK}", tiny_room.submitted / "ada" / NAME
    collect(tiny_room, [_zip(tmp_path / "1.zip", {name: WRONG_BOOK})])
    notes = {"timestamp.txt": "2026-12-25 10:00:00 UTC", "submission_secret.txt": "abc"}
    for note, text in notes.items():
        (folder / note).write_text(text)

    def write_whole(path, content, public=False):
        if path.name == BOOK:
            raise OSError(errno.ENOSPC, "full", str(path))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr("autograder.classroom.collect.write_whole", write_whole)
        collect(tiny_room, [_zip(tmp_path / "2.zip", {name: RIGHT_BOOK})])
    assert _there(tiny_room) == {"ada": WRONG_BOOK}
    assert {note: (folder / note).read_text() for note in notes} == notes
    collect(tiny_room, [tmp_path / "2.zip"])
    assert _there(tiny_room) == {"ada": RIGHT_BOOK}
    assert not any((folder / note).exists() for note in notes)


def test_times_are_taken_where_they_are_asked_for_and_are_of_handing_in(tiny_room, tmp_path):
    names = [f"{who}_1_assignsubmission_file_/{BOOK}" for who in ("ada", "ben", "cleo")]
    together = _zip(tmp_path / "together.zip", dict.fromkeys(names, RIGHT_BOOK))
    (said,) = _refused(collect(tiny_room, [together], timestamps=True)).values()
    assert "none was taken" in said
    clock = tiny_room.submitted / "ada" / NAME / "timestamp.txt"
    assert not clock.exists()
    apart = _zip(tmp_path / "apart.zip", dict.fromkeys(names, RIGHT_BOOK), ben=(2026, 12, 20, 9, 0, 0))
    collect(tiny_room, [apart], timestamps=True)
    assert clock.read_text().startswith("2026-12-2")
    older = _zip(tmp_path / "older.zip", {names[0]: WRONG_BOOK}, ada=(2026, 12, 1, 9, 0, 0))
    (found,) = collect(tiny_room, [older], timestamps=True)
    assert "was handed in later" in found.why
    assert _there(tiny_room)["ada"] == RIGHT_BOOK


def _linked():
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        info = zipfile.ZipInfo(BOOK)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    return target.getvalue()


def _nameless():
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        info = zipfile.ZipInfo("x")
        info.filename = ""
        archive.writestr(info, b"")
    return target.getvalue()


HOSTILE = {
    "a link": (_linked, "it is a link"),
    "a path upwards": (lambda: _packed({f"../../../ben/{BOOK}": RIGHT_BOOK}), "leads out of the archive"),
    "an absolute path": (lambda: _packed({f"/tmp/{BOOK}": RIGHT_BOOK}), "leads out of the archive"),
    "a drive": (lambda: _packed({f"C:\\x\\{BOOK}": RIGHT_BOOK}), "leads out of the archive"),
    "no name": (lambda: _packed({"x": b""}).replace(b"x", b"."), "has no name"),
    "many folders": (lambda: _packed({f"{'a/' * 30_000}{BOOK}": RIGHT_BOOK}), "its path has more than"),
    "a bomb": (lambda: _packed({BOOK: bytes(40 << 20)}), "larger than 32 MiB"),
    "many members": (lambda: _packed(dict.fromkeys(map(str, range(MAX_MEMBERS + 1)), b"")), "holds more than"),
    "not an archive": (lambda: b"PK\x03\x04 no", "cannot be read as an archive"),
    "cut short": (lambda: _packed({BOOK: RIGHT_BOOK})[:-30], "cannot be read as an archive"),
    "damaged": (lambda: _packed({BOOK: RIGHT_BOOK}, 0).replace(b"def double", b"def doubly"), "cannot be unpacked"),
    "another packing": (lambda: _packed({BOOK: RIGHT_BOOK}, zipfile.ZIP_LZMA), "packed in a way"),
    "archives within": (lambda: _packed({"a.zip": _packed({"b.zip": b""})}), "an archive in an archive in an archive"),
    "nothing": (lambda: _packed({}), "holds no files"),
    "hidden files": (lambda: _packed({f".work/{BOOK}": RIGHT_BOOK}), "it is hidden"),
    "an empty name": (_nameless, "has no name"),
    "a name not UTF-8": (
        lambda: _packed({"ééé": b""}).replace("é".encode(), b"\xff\xfe"),
        "cannot be read as an archive",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_costs_only_itself(tiny_room, tmp_path, kind):
    make, says = HOSTILE[kind]
    members = {f"ada/{BOOK}": RIGHT_BOOK, "eve/all.zip": make()}
    taken = collect(tiny_room, [_zip(tmp_path / "moodle.zip", members)])
    assert _there(tiny_room) == {"ada": RIGHT_BOOK}
    (why,) = _refused(taken).values()
    assert says in why
    assert sorted(path.name for path in tmp_path.iterdir()) == ["class", "moodle.zip"]
    assert not list(tiny_room.folder.glob(".staging*"))


@pytest.mark.parametrize(("content", "count"), [(b"{}", 1000), (bytes(8 << 20), 7)], ids=["many", "large"])
def test_archives_within_an_archive_hold_no_more_than_one(tmp_path, content, count):
    inner = _packed({f"{n}.ipynb": content for n in range(count)})
    eve = _packed({f"{n}.zip": inner for n in range(9)})
    found = list(files(_zip(tmp_path / "moodle.zip", {"eve/all.zip": eve, f"ada/{BOOK}": RIGHT_BOOK})))
    read = [len(each.content) for each in found if each.content is not None]
    assert len(read) <= MAX_NOTEBOOKS + 1
    assert sum(read) <= 1.2 * MAX_UNPACKED
    assert {each.parts: each.content for each in found}["ada", BOOK] == RIGHT_BOOK
    assert len(read) < 9 * count


@pytest.mark.thorough
def test_what_unpacks_to_more_than_is_kept_is_counted_too(tmp_path):
    """A member of a wrong checksum gives nothing, and takes its time."""
    packed = bytearray(_packed({f"{n}.ipynb": bytes(MAX_BYTES) for n in range(40)}))
    at = 0
    while (at := packed.find(b"PK\1\2", at) + 16) > 15:
        packed[at] ^= 1
    told = [each.problem for each in files(_zip(tmp_path / "moodle.zip", {"eve/all.zip": bytes(packed)}))]
    assert sum("cannot be unpacked" in problem for problem in told) <= MAX_UNPACKED // MAX_BYTES + 1
    assert "the archive's notebooks take more memory than there is for them" in told


@pytest.mark.parametrize(
    ("name", "says"),
    [("mine.ipynb.txt", "a name that ends in .ipynb"), ("work.tar.gz", "pack it as .zip"), ("notes.txt", "notebook")],
)
def test_a_file_that_is_no_notebook_is_told_with_what_to_do(tiny_room, tmp_path, name, says):
    taken = collect(tiny_room, [_zip(tmp_path / "moodle.zip", {f"ada/{name}": b"{}"})])
    (why,) = _refused(taken).values()
    assert why.endswith(says)


def test_a_colon_in_a_files_name_is_no_drive(tmp_path):
    (found,) = files(_zip(tmp_path / "in.zip", {"1: final.ipynb": RIGHT_BOOK}))
    assert (found.content, found.problem) == (RIGHT_BOOK, "")


@pytest.mark.thorough
def test_an_archive_of_100_000_members_is_read_and_told_in_a_few_lines(tiny_room, tmp_path):
    members = {f"ada/{BOOK}": RIGHT_BOOK} | {f"eve{n}/x.txt": b"" for n in range(100_000)}
    taken = collect(tiny_room, [_zip(tmp_path / "many.zip", members, zipfile.ZIP_STORED)])
    assert _there(tiny_room) == {"ada": RIGHT_BOOK}
    assert len(taken) < 200


def test_thousands_of_notebooks_of_one_student_are_told_in_a_few_lines_and_soon(tiny_room, tmp_path):
    book = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    long = 960 * "\ufdfa"  # of which each is 18 letters, taken apart
    many = _packed({f"{n}{long}.ipynb": book for n in range(200)})
    members = {"Bo_1_assignsubmission_file_/work.zip": many, f"Ada_2_assignsubmission_file_/{BOOK}": RIGHT_BOOK}
    taken = collect(tiny_room, [_zip(tmp_path / "in.zip", members)])
    assert _there(tiny_room) == {"Ada": RIGHT_BOOK} and len(taken) == 102
    assert taken[-1].file == "100 files more" and taken[-1].student == "Bo"


def test_which_of_two_counts_is_not_guessed(tiny_room, tmp_path):
    members = {
        "ada/one.ipynb": RIGHT_BOOK,
        "ada/two.ipynb": WRONG_BOOK,
        f"ben/{BOOK}": RIGHT_BOOK,
        "ben/old.ipynb": WRONG_BOOK,
    }
    taken = collect(tiny_room, [_zip(tmp_path / "in.zip", members)])
    assert _there(tiny_room) == {"ben": RIGHT_BOOK}
    assert all("one of 2" in why for why in _refused(taken).values())
    assert len(_refused(taken)) == 2


def test_what_is_no_notebook_goes_to_the_student_who_shall_hear_of_it(tiny_room, tmp_path):
    (found,) = collect(tiny_room, [_zip(tmp_path / "in.zip", {f"ada/{BOOK}": b"{"})])
    assert found.remark and "no notebook that can be read" in found.why
    assert tiny_room.grade()[0].verdicts[0].outcome is Outcome.UNREADABLE


def test_a_source_that_is_none_is_an_error(tiny_room, tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK")
    (tmp_path / "x.tar.gz").write_bytes(b"x")
    for path, says in (
        (tmp_path / "none.zip", "there is no"),
        (tmp_path / "x.zip", "no .zip archive and no notebook$"),
        (tmp_path / "x.tar.gz", "no .zip archive and no notebook: unpack it, or pack it as .zip"),
    ):
        with pytest.raises(OSError, match=says):
            collect(tiny_room, [path])


def test_an_empty_source_is_said(tiny_room, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (_zip(tmp_path / "in.zip", {}), tmp_path / "empty"):
        (said,) = collect(tiny_room, [path])
        assert (said.file, said.what, said.why, said.good) == (path.name, "refused", "it holds no files", False)


@pytest.fixture
def two_lessons(tiny_room, tmp_path):
    """The tiny course with a second lesson, of other exercises."""
    root = tmp_path / "course"
    first, second = (root / "solutions" / name for name in (NAME, "91_other"))
    for folder in (first, second):
        folder.mkdir(parents=True)
        for file in (tiny_room.course.folder(NAME)).glob("*.py"):
            text = file.read_text()
            if folder is second:
                text = text.replace("double", "rms_norm").replace("DOUBLE", "NORM").replace("quad", "rope")
            (folder / file.name).write_text(text)
    tiny_room.course = Course.at(root)
    return tiny_room


def test_a_lesson_that_is_handed_in_as_another_is_told(two_lessons, tmp_path):
    members = {f"ada/{BOOK}": json.dumps(OTHER).encode(), "ben/mine.ipynb": json.dumps(OTHER).encode()}
    taken = {each.student: each for each in collect(two_lessons, [_zip(tmp_path / "in.zip", members)])}
    assert "it is the notebook of 91_other, handed in as 90_tiny" in taken["ada"].why
    assert (taken["ben"].lesson, taken["ben"].why) == ("91_other", "")
    (result,) = two_lessons.grade([NAME])
    assert {verdict.outcome for verdict in result.verdicts} == {Outcome.OTHER}
    assert f"the notebook of 91_other was handed in as {NAME}" in result.verdicts[0].reason


def test_notebooks_of_one_name_in_a_students_folders_get_a_page_each(two_lessons, tmp_path):
    lessons = {"a": NAME, "b": "91_other"}
    members = {}
    for folder, lesson in lessons.items():
        page = two_lessons.folder / "feedback" / "Ada" / lesson / f"{lesson}.html"
        page.parent.mkdir(parents=True)
        page.write_text(lesson)
        book = json.dumps(two_lessons.course.lesson(lesson).notebook).encode()
        members[f"Ada_1_assignsubmission_file_/{folder}/x.ipynb"] = book
    download = _zip(tmp_path / "download.zip", members)
    told = hand_back(two_lessons, download, tmp_path / "back.zip")
    with zipfile.ZipFile(tmp_path / "back.zip") as archive:
        assert {each.to: archive.read(each.to).decode() for each in told} == {
            "Ada_1_assignsubmission_file_/x.html": NAME,
            "Ada_1_assignsubmission_file_/x-91_other.html": "91_other",
        }
        assert len(archive.namelist()) == 2
