"""The names that kernels may use, beside what the installed Triton offers."""

import importlib
import math

import pytest

from autograder.kernels.language import (
    BUILTINS,
    DTYPES,
    FRONT_END,
    GLUON,
    GLUON_REFUSED,
    HOPPER,
    LANGUAGE,
    LANGUAGE_REFUSED,
    VALUE_ATTRIBUTES,
)


def test_all_that_this_triton_offers_is_allowed_or_refused_with_a_reason():
    language = pytest.importorskip("triton.language", reason="compares with Triton")
    names = {name for name in dir(language) if not name.startswith("_")}
    assert names - LANGUAGE - set(LANGUAGE_REFUSED) == set()
    assert not LANGUAGE & set(LANGUAGE_REFUSED)
    types = {name for name in names if isinstance(getattr(language, name), language.dtype)}
    assert types == DTYPES & names
    modules = {name for name in names if isinstance(getattr(language, name), type(math))}
    assert not modules & LANGUAGE


SINCE_3_7 = {"mbarrier.allocate_mbarrier"}


def test_all_that_this_gluon_offers_is_allowed_or_refused_with_a_reason():
    triton = pytest.importorskip("triton", reason="compares with Triton")
    gl = importlib.import_module("triton.experimental.gluon.language")
    names = {name for name in dir(gl) if not name.startswith("_")}
    assert names - GLUON - set(GLUON_REFUSED) == set()
    assert not GLUON & set(GLUON_REFUSED)
    assert not {name for name in names if isinstance(getattr(gl, name), type(math))} & GLUON
    for path in HOPPER - SINCE_3_7 if triton.__version__ < "3.7" else HOPPER:
        found = importlib.import_module("triton.experimental.gluon.language.nvidia.hopper")
        for name in path.split("."):
            found = getattr(found, name)
        assert callable(found), path


def test_what_tritons_front_end_knows_by_itself_is_no_name_of_a_kernel():
    generator = pytest.importorskip("triton.compiler.code_generator", reason="compares with Triton")
    assert set(generator.CodeGenerator.builtin_namespace) <= BUILTINS | FRONT_END


def test_no_attribute_of_a_value_leads_to_a_module():
    triton = pytest.importorskip("triton", reason="asks Triton")
    language = pytest.importorskip("triton.language")
    gl = pytest.importorskip("triton.experimental.gluon.language")
    named = [getattr(each, name) for each in (language, gl) for name in LANGUAGE | GLUON if hasattr(each, name)]
    for value in [
        *named,
        triton.cdiv,
        triton.next_power_of_2,
        language.constexpr(3),
        math.sqrt,
        (1,),
        "text",
        1.5,
        len,
    ]:
        for attribute in VALUE_ATTRIBUTES:
            assert not isinstance(getattr(value, attribute, None), type(math)), (value, attribute)
