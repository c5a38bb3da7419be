"""Encoding of a page's data: arrays and JSON are decoded unchanged, and no text of a run becomes a tag."""

import base64
import json
import math

import numpy as np
import pytest

from rookery.report.page_json import Packed, packed, rounded, to_json

NAN, INF = math.nan, math.inf


def unpacked(encoded: Packed) -> np.ndarray:
    """Decode an array as the page does."""
    array = np.frombuffer(base64.b64decode(encoded["base64"]), f"<{encoded['type']}").reshape(encoded["shape"])
    if "scale" not in encoded or "offset" not in encoded:
        return array
    return np.where(array == -32768, NAN, encoded["offset"] + encoded["scale"] * array.astype(float))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[1.5, NAN, INF], [-INF, -0.0, 2.0**-140]], "f4"),
        ([[-1, 2**31 - 1]], "i4"),
        (np.array([0, 255], np.uint8), "u1"),
        ([True, False], "u1"),
        ([], "f4"),
    ],
)
def test_arrays_are_decoded_unchanged(values, kind):
    encoded = packed(values)
    assert (encoded["type"], encoded["shape"]) == (kind, list(np.shape(values)))
    np.testing.assert_array_equal(unpacked(encoded), np.asarray(values))


def test_double_precision():
    steps = [2.0**24 + 1, 1e300]
    assert unpacked(packed(steps, precise=True)).tolist() == steps
    assert unpacked(packed(steps)).tolist() == [2.0**24, INF], "without a warning"
    assert len(packed([1.0] * 300, precise=True)["base64"]) == 300 * 8 * 4 / 3


class TestRounded:
    def test_the_error_is_at_most_half_a_step(self):
        values = np.random.default_rng(0).uniform(-30, 70, (40, 5, 3))
        values[0, 0] = [-30.0, 70.0, NAN]
        back = unpacked(rounded(values))
        assert back.shape == values.shape
        assert np.array_equal(np.isnan(back), np.isnan(values))
        step = 100 / 65534
        off = np.nanmax(abs(back - values))
        assert 0.4 * step < off <= 0.5001 * step
        assert off < 1e-3, "at most 1 mm of 100 m"
        assert back[0, 0, :2] == pytest.approx([-30.0, 70.0], abs=1e-9)
        assert len(rounded(values)["base64"]) == 40 * 5 * 3 * 2 * 4 / 3

    def test_values_that_are_equal_or_not_finite(self):
        for value in (0.0, -3.25, 1e9, 1e-9):
            assert unpacked(rounded([value, value])) == pytest.approx([value, value], rel=1e-12, abs=1e-11)
        assert unpacked(rounded([-1.0, INF, 3.0, -INF])) == pytest.approx([-1.0, 3.0, 3.0, -1.0])
        assert np.isnan(unpacked(rounded([NAN, NAN]))).all()
        assert unpacked(rounded([INF, INF])) == pytest.approx([0.0, 0.0])
        assert unpacked(rounded(np.empty((0, 3)))).shape == (0, 3)


class TestJson:
    def test_text_is_decoded_unchanged_and_contains_no_tag(self):
        for text in (
            "</script><script>alert(1)</script>",
            "<!--",
            "]]>",
            "a & b",
            "\u2028\u2029",
            "\U0001f600 é",
            "\\u003c",
        ):
            text_of_json = to_json({text: [text]})
            assert json.loads(text_of_json) == {text: [text]}
            assert text_of_json.isascii()
            assert not set("<>&") & set(text_of_json)

    def test_numbers(self):
        scalars = {"c": np.float32(0.5), "d": np.int64(3), "e": np.bool_(True), 4: None}
        text_of_json = to_json({"a": (1, 2.5), "b": [NAN, INF, -INF], **scalars})
        assert text_of_json == '{"a":[1,2.5],"b":[null,null,null],"c":0.5,"d":3,"e":true,"4":null}'
        with pytest.raises(TypeError):
            to_json({"a": np.zeros(3)})
