import html
import json
import re
from dataclasses import replace

import pytest
import torch
import transformers
from support.tiny_models import SIZES, tiny_model
from unit.downstream.inspection.chromium import dump_dom
from unit.downstream.inspection.conftest import NARROW

from megabert.downstream.export.config_json import config_json
from megabert.downstream.inspection.attention import record_attention
from megabert.downstream.inspection.attention_page import render_attention
from megabert.foundation.errors import ConfigError
from megabert.models.convert import from_huggingface, load_parameters, to_huggingface

TOLERANCE = {"rtol": 0, "atol": 1e-5}
TEXTS = ("the cats sat .", "the [MASK]")
HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">&amp;<!--"


def neurons_in_browser(record, folder, **options):
    """Write the page, hold a row of scores and its softmax in a browser against the record's, and return the view."""
    (folder / "page.html").write_text(render_attention(record, model="little", **options), encoding="utf-8")
    neurons = dump_dom(folder / "page.html", "view=neuron&layer=1&heads=1&token=4", folder / "profile")
    for name, values in (("score", record.scores()), ("softmax", record.probabilities())):
        shown = re.findall(rf'class="(?:number )?{name}" data-value="([^"]+)"', neurons)
        torch.testing.assert_close(torch.tensor([float(text) for text in shown]), values[1, 1, 4], **TOLERANCE)
    return neurons


@pytest.fixture
def record(model, tokenizer):
    return record_attention(model, tokenizer, *TEXTS)


def test_pieces_are_those_of_the_pair_with_its_mask(record):
    assert record.pieces == ["[CLS]", "the", "cat", "##s", "sat", ".", "[SEP]", "the", "[MASK]", "[SEP]"]
    assert record.segment_b_start == 7


def test_probabilities_times_values_are_what_the_op_returned(record):
    context_LNSH = record.probabilities() @ record.v_LNSH
    torch.testing.assert_close(context_LNSH.transpose(1, 2).flatten(2), record.context_LSD, **TOLERANCE)
    assert record.probabilities().max() > 0.5  # far from uniform: the comparison can fail


def test_probabilities_are_those_of_transformers(tokenizer):
    sizes = {**SIZES, "vocab_size": tokenizer.vocab_size, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, initializer_range=0.4, attn_implementation="eager")
    theirs = transformers.BertModel(config).eval()
    model = tiny_model(objective="nsp", **sizes).eval()
    state, missing, _ = from_huggingface(theirs.state_dict(), model.config)
    load_parameters(model, state, may_lack=missing)
    record = record_attention(model, tokenizer, *TEXTS)
    ids = torch.tensor([[tokenizer.vocab[piece] for piece in record.pieces]])
    segments = (torch.arange(ids.shape[1]) >= record.segment_b_start).long()[None]
    with torch.no_grad():
        expected = theirs(input_ids=ids, token_type_ids=segments, output_attentions=True).attentions
    torch.testing.assert_close(record.probabilities(), torch.cat(expected), **TOLERANCE)


def test_a_layer_used_again_is_recorded_each_time(tokenizer):
    own = {"vocab_size": tokenizer.vocab_size, "embedding_size": 8, "num_hidden_layers": 3}
    record = record_attention(tiny_model("albert", objective="sop", **NARROW, **own).eval(), tokenizer, "the cat sat")
    assert record.q_LNSH.shape == (3, 2, 5, 8)
    assert not torch.equal(record.q_LNSH[0], record.q_LNSH[1])


@pytest.fixture(params=["deberta", "deberta-v2"])
def deberta(request, tokenizer):
    own = {"position_buckets": 4} if request.param == "deberta-v2" else {"pos_att_type": ("p2c",)}
    return tiny_model(request.param, noise=0.3, vocab_size=tokenizer.vocab_size, **NARROW, **own).eval()


def test_probabilities_of_a_deberta_have_its_positions(deberta, tokenizer):
    record = record_attention(deberta, tokenizer, *TEXTS)
    context_LNSH = record.probabilities() @ record.v_LNSH
    torch.testing.assert_close(context_LNSH.transpose(1, 2).flatten(2), record.context_LSD, **TOLERANCE)
    assert record.position_scores_LNSS.abs().max() > 0.1
    config = deberta.config
    content = json.loads(
        json.dumps(config_json(config, architecture="none", special_ids=tokenizer.special_ids, is_tied=True))
    )
    theirs = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**content)).eval()
    state = {name: value.detach() for name, value in deberta.named_parameters()}
    named = {name.removeprefix("deberta."): value for name, value in to_huggingface(state, config).items()}
    assert not theirs.load_state_dict(named, strict=False).missing_keys
    ids = torch.tensor([[tokenizer.vocab[piece] for piece in record.pieces]])
    with torch.no_grad():
        expected = theirs(input_ids=ids, output_attentions=True).attentions
    torch.testing.assert_close(record.probabilities(), torch.cat(expected), **TOLERANCE)


@pytest.mark.parametrize("deberta", ["deberta-v2"], indirect=True)
def test_browser_shows_the_numbers_of_a_deberta(deberta, tokenizer, tmp_path):
    record = record_attention(deberta, tokenizer, *TEXTS)
    neurons = neurons_in_browser(record, tmp_path, layers=[1])
    assert f"(8 \u00b7 {record.kinds}) + positions" in neurons


def test_recording_leaves_no_trace_on_the_model(model, tokenizer):
    record_attention(model, tokenizer, "the cat")
    assert not any(module._forward_hooks for module in model.modules())


def test_page_fetches_nothing_and_quotes_tokens(record):
    pieces = [*record.pieces[:-1], HOSTILE]
    page = render_attention(replace(record, pieces=pieces), model=HOSTILE)
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|\bsrc=|@import|url\(|\bfetch\(|XMLHttpRequest", page.replace("src=x", ""))
    assert page.count("<script") == page.count("</script>") == 2
    assert HOSTILE not in page


@pytest.mark.parametrize(
    ("layers", "message"), [([2], "layers 0 to 1"), ([-1, 0], "--layers -1"), ([], "has the layers")]
)
def test_layers_that_do_not_exist_are_refused(layers, message, record):
    with pytest.raises(ConfigError, match=message):
        render_attention(record, model="m", layers=layers)


def test_a_page_too_large_to_open_is_refused(record):
    large = replace(
        record, q_LNSH=torch.zeros(24, 16, 512, 64), k_LNSH=torch.zeros(24, 16, 512, 64), reaches=(None,) * 24
    )
    with pytest.raises(ConfigError, match=r"MiB, allowed are 64. Shorten the text, or show fewer layers"):
        render_attention(large, model="m")
    assert len(render_attention(large, model="m", layers=[0, 23])) < 64 * 2**20


def test_browser_shows_the_models_numbers(record, tmp_path):
    neurons_in_browser(record, tmp_path)
    page = tmp_path / "page.html"
    heads = dump_dom(page, "view=head&layer=1&heads=0,1&token=4", tmp_path / "profile")
    shown = [list(map(float, text.split())) for text in re.findall(r'data-probabilities="([^"]+)"', heads)]
    torch.testing.assert_close(torch.tensor(shown).T, record.probabilities()[1, :, 4], **TOLERANCE)
    assert not re.findall("<label>(?:(?!</label>).)*<button", heads), "a click on a label presses its first button"
    model_view = dump_dom(page, "view=model", tmp_path / "profile")
    assert len(re.findall(r'<canvas[^>]*title="layer \d, head \d"', model_view)) == 2 * 2


def test_browser_shows_a_hostile_token_as_text(record, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(render_attention(replace(record, pieces=[HOSTILE] * 10), model=HOSTILE), encoding="utf-8")
    for view in ("head", "neuron"):
        dom = dump_dom(page, f"view={view}&token=0&heads=0;alert(1)&pair=constructor", tmp_path / "profile")
        assert "<img" not in dom
        assert "<title>Attention</title>" in dom
        assert html.escape(HOSTILE, quote=False) in dom


def test_command_writes_the_page(model_folder, tmp_path, megabert):
    output = tmp_path / "page.html"
    arguments = ["attention", "the cats sat.", "the dog.", "--model", str(model_folder), "--output", str(output)]
    assert "11 tokens" in megabert(*arguments, "--layers", "1").out
    assert '"layers": [1]' in output.read_text(encoding="utf-8")


@pytest.fixture
def modernbert(tokenizer):
    """Return a model whose second layer sees two tokens to either side; the two texts have 10."""
    own = {"max_position_embeddings": 512, "local_attention": 4, "global_attn_every_n_layers": 2}
    return tiny_model("modernbert", noise=0.3, vocab_size=tokenizer.vocab_size, **NARROW, **own).eval()


@pytest.mark.parametrize("text", ["the cats sat .", "the cat " * 255], ids=["short", "of all positions"])
def test_window_of_a_modernbert_is_a_mask(text, modernbert, tokenizer):
    record = record_attention(modernbert, tokenizer, text)
    assert record.reaches == (None, 2)
    context_LNSH = record.probabilities() @ record.v_LNSH
    torch.testing.assert_close(context_LNSH.transpose(1, 2).flatten(2), record.context_LSD, **TOLERANCE)
    tokens = len(record.pieces)
    is_near_SS = torch.ones(tokens, tokens).tril(2).triu(-2).bool()
    assert torch.equal(record.probabilities()[1] > 0, is_near_SS.expand(2, -1, -1))


def test_browser_masks_what_is_outside_of_the_window(modernbert, tokenizer, tmp_path):
    neurons = neurons_in_browser(record_attention(modernbert, tokenizer, *TEXTS), tmp_path)
    page = tmp_path / "page.html"
    outside = ["0", "1", "7", "8", "9"]
    assert re.findall(r'<tr class="masked"[^>]* data-token="(\d+)"', neurons) == outside
    heads = dump_dom(page, "view=head&layer=1&token=4", tmp_path / "profile")
    assert re.findall(r'class="token to [^"]*\bmasked"[^>]* data-token="(\d+)"', heads) == outside
    assert "sees 2 tokens to either side" in heads
    assert (
        "masked"
        not in dump_dom(page, "view=head&layer=0&token=4", tmp_path / "profile")
        .split("<script")[0]
        .split("</style>")[1]
    )


@pytest.mark.parametrize("name", ["runs/*SCRIPT*/", "/*DATA*/", "\\1"])
def test_path_that_looks_like_a_place_of_the_page_is_shown(record, name):
    assert f'"model": {json.dumps(name)}' in render_attention(record, model=name)
