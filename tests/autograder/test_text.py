"""What strangers write, as a terminal, a page and a table show it."""

from autograder.text import MARKS, one_line


def test_text_behind_many_blanks_does_not_look_like_a_line_of_its_own():
    forged = "wrong" + " \t\u3000" * 150 + "01_mha bob: attention 0/5, copied from carol"
    assert one_line(forged) == "wrong  01_mha bob: attention 0/5, copied from carol"


def test_marks_on_a_letter_stay_within_its_line():
    assert one_line("e" + "\u0301" * 300 + "\u0489" * 50 + "nd") == "e" + "\u0301" * MARKS + "nd"
    for word in ("Nguyễn Thị Ánh", "เป็นที่รู้จัก", "שָׁלוֹם", "བོད་སྐད་"):
        assert one_line(word) == word
