import pytest

TEXTS = ["The whale, a \u00c9norme animal!", "  two  spaces", "", "\u4e2d\u6587 x", "\uc11c\uc6b8\uc5d0\uc11c \ubd04"]


@pytest.mark.parametrize("name", ["cased", "uncased", "uncased_korean"])
def test_offsets_lead_back_to_the_text_of_each_piece(name, request):
    tokenizer = request.getfixturevalue(name)
    found = tokenizer.encode_with_offsets(TEXTS)
    assert [ids.tolist() for ids, _ in found] == [ids.tolist() for ids in tokenizer.encode_batch(TEXTS)]
    for text, (ids, offsets) in zip(TEXTS, found, strict=True):
        assert offsets.shape == (len(ids), 2)
        for index, (start, end) in zip(ids, offsets, strict=True):
            piece = tokenizer.pieces[index]
            if piece != "[UNK]":
                assert tokenizer.normalize(text[start:end]).strip() == piece.removeprefix("##")
