import bz2
import gzip
import html

import pytest
from unit.data_prep.conftest import read_chunks

from data_prep.execution.records import Problems
from data_prep.extract import inputs
from data_prep.extract.wikipedia import Site, plain_text
from megabert.foundation.errors import DataError

HEAD = """<mediawiki xml:lang="de"><siteinfo><namespaces>
<namespace key="-1" case="first-letter">Spezial</namespace><namespace key="0" />
<namespace key="1">Diskussion</namespace><namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>
</namespaces></siteinfo>
"""
MARKUP = """{{Infobox town|name={{lang|fr|Nested {{deep|x}}}}|image=[[File:A.jpg|thumb|of [[B]]]]}}
'''Town''' is a ''place'' in [[Country (land)|the country]],<ref name="a">A [[source]]. {{cite|b}}</ref> near \
[[Sea]].<ref name="a" />
[[File:View.jpg|thumb|The [[view]] from above]]
{| class="wikitable"
! Year !! People
|-
| 1900 || {{nts|100}}
{| inner
| cell
|}
|}
== History ==
It was founded in 1200&nbsp;AD &amp; grew ({{IPA|x}}) fast<!-- when? -->. See [http://example.org the site] or [http://example.org].
* A list item
** Another ''one''
# Numbered
: Indented
;Term: its meaning
=== Later ===
H<sub>2</sub>O flows.<br />It flows on. <math>x^2</math> <gallery>File:X.jpg|Y</gallery>__NOTOC__
[[Kategorie:Towns]] [[de:Stadt]] [[Datei:B.png|mini|Bild]]
"""
TEXT = [
    "Town is a place in the country, near Sea.",
    "It was founded in 1200 AD & grew fast. See the site or .".replace(" .", "."),
    "H2O flows. It flows on.",
]


def page(title, text, namespace="0", extra=""):
    number = "" if namespace is None else f"<ns>{namespace}</ns>"
    return (
        f"  <page>\n    <title>{html.escape(title)}</title>\n    {number}\n    <id>1</id>{extra}\n    <revision>"
        f'<text bytes="1" xml:space="preserve">{html.escape(text, quote=False)}</text></revision>\n  </page>\n'
    )


def article(index):
    first = f"Article {index} is '''here''' &mdash; and [[link|goes]] on."
    return f"{first}\n\nIts second paragraph {{{{cut|{index}}}}} ends."


PAGES = [
    page("Town", MARKUP),
    page("Old name", "#REDIRECT [[Town]]", None),
    page("Alter Name", "#WEITERLEITUNG [[Town]]", extra='<redirect title="Town" />'),
    page("Diskussion:Town", "Talk talk.", namespace="1"),
    *(page(f"Number {index}", article(index)) for index in range(40)),
]
COUNTS = {"articles": 41, "redirects": 2, "pages_of_other_namespaces": 1}


def read_all(path, chunk_bytes=1 << 30):
    problems = Problems()
    texts, chunks = read_chunks(path, problems, chunk_bytes)
    return texts, problems, chunks


def test_markup_is_taken_off_and_prose_kept():
    site = Site(dropped=Site.dropped | {"datei", "kategorie"})
    assert plain_text(MARKUP, site).split("\n") == TEXT


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_articles_of_a_dump_are_read(tmp_path, suffix):
    data = (HEAD + "".join(PAGES) + "</mediawiki>\n").encode()
    compress = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    path = tmp_path / f"dewiki-pages-articles.xml{suffix}"
    path.write_bytes(compress(data))
    found, problems, _ = read_all(path)
    assert found[0].split("\n") == TEXT
    assert found[1] == "Article 0 is here \u2014 and goes on.\nIts second paragraph ends."
    assert problems.counts == COUNTS


def test_plain_dump_is_cut_between_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1)
    (tmp_path / "a.xml").write_text(HEAD + "".join(PAGES) + "</mediawiki>\n")
    whole, _, _ = read_all(tmp_path / "a.xml")
    parts, problems, chunks = read_all(tmp_path / "a.xml", chunk_bytes=777)
    assert parts == whole
    assert len(chunks) > 10
    assert problems.counts == COUNTS


def test_namespaces_of_old_dumps_are_told_by_the_title(tmp_path):
    pages = {"A: a story": "Text of A.", "Diskussion:A": "Talk.", "R": "#redirect [[A]]"}
    (tmp_path / "a.xml").write_text(HEAD + "".join(page(title, text, None) for title, text in pages.items()))
    found, problems, _ = read_all(tmp_path / "a.xml")
    assert found == ["Text of A."]
    assert problems.counts == {"articles": 1, "redirects": 1, "pages_of_other_namespaces": 1}


EMPTY_REVISION = '<revision><text bytes="0" /></revision>'


@pytest.mark.parametrize(
    ("pages", "text"),
    [
        (page("A", "Newest.", extra="<revision><text>First draft.</text></revision>"), "Newest."),
        (page("A", "Newest.", extra=EMPTY_REVISION), "Newest."),
        (page("A", "Old.").replace("</revision>", f"</revision>{EMPTY_REVISION}"), ""),
        (page("A", "# See [[Foo]] first.\n\nThis is the article."), "This is the article."),
    ],
    ids=["history", "first revision empty", "last revision empty", "list with a link"],
)
def test_article_is_the_newest_revision_and_no_redirect_for_its_list(tmp_path, pages, text):
    (tmp_path / "a.xml").write_text(HEAD + pages)
    found, problems, _ = read_all(tmp_path / "a.xml")
    assert (found, problems.counts) == ([text], {"articles": 1})


@pytest.mark.parametrize("cut", [20, 150])
def test_cut_end_is_counted_and_not_fatal(tmp_path, cut):
    (tmp_path / "a.xml").write_text((HEAD + "".join(PAGES))[:-cut])
    found, problems, _ = read_all(tmp_path / "a.xml")
    assert len(found) == 40
    assert problems.counts["cut_pages"] == 1


@pytest.fixture
def multistream(tmp_path):
    streams, offsets, place = [HEAD], [], 0
    streams += ["".join(PAGES[i : i + 5]) for i in range(0, len(PAGES), 5)]
    data = b""
    for stream in [*streams, "</mediawiki>\n"]:
        offsets.append(len(data))
        data += bz2.compress(stream.encode())
    path = tmp_path / "dumps[1]" / "dewiki-pages-articles-multistream.xml.bz2"
    path.parent.mkdir()
    path.write_bytes(data)
    lines = "".join(f"{offset}:{n}:Title {n}\n" for offset in offsets[1:-1] for n in range(place, place + 5))
    return path, lines


@pytest.mark.parametrize("index", ["bz2", "plain", "none"])
def test_multistream_dump_is_read_in_parts(multistream, monkeypatch, index):
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1)
    path, lines = multistream
    if index != "none":
        name = path.with_name(f"dewiki-pages-articles-multistream-index.txt{'.bz2' if index == 'bz2' else ''}")
        name.write_bytes(bz2.compress(lines.encode()) if index == "bz2" else lines.encode())
    found, problems, chunks = read_all(path, chunk_bytes=1)
    assert len(chunks) >= 9
    assert len(found) == 41
    assert problems.counts == COUNTS


def moved(lines):
    return "".join(f"{int(line.split(':')[0]) + 40}:1:X\n" for line in lines.splitlines())


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        *(
            (".bz2", lambda lines, damage=damage: damage(bz2.compress(lines.encode())), "is cut or damaged")
            for damage in (lambda data: data[:-9], lambda data: data[:20] + b"xx" + data[22:], lambda _: b"")
        ),
        ("", lambda lines: f"{lines}999999999:1:X\n".encode(), "index belongs to another file"),
        ("", lambda lines: moved(lines).encode(), r"no bzip2 stream begins at byte \d+, where the index next to it"),
    ],
    ids=["cut", "damaged", "empty", "of another dump", "offsets inside streams"],
)
def test_unfit_index_is_refused(multistream, monkeypatch, name, change, says):
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1)
    path, lines = multistream
    path.with_name(f"dewiki-pages-articles-multistream-index.txt{name}").write_bytes(change(lines))
    with pytest.raises(DataError, match=says):
        read_all(path, chunk_bytes=1)


def test_page_that_the_parser_cannot_take_is_counted(tmp_path, monkeypatch):
    def fail(markup, site):
        raise RecursionError("too deep")

    monkeypatch.setattr("data_prep.extract.wikipedia.plain_text", fail)
    (tmp_path / "a.xml").write_text(HEAD + page("A", "x"))
    found, problems, _ = read_all(tmp_path / "a.xml")
    assert found == []
    assert problems.counts["unparsable_pages"] == 1


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("x-{zh-hans:\u8ba1;zh-hant:\u8a08}-y", "x\u8ba1y"),
        ("-{zh-cn:A; zh-tw:B;}-", "A"),
        ("-{A|sr-ec:[[x|\u0411]];sr-el:B}-", "\u0411"),
        ("a-{H|zh-cn:A;zh-tw:B}-b-{T|zh:q}-", "ab"),
        ("-{\u539f}- -{R|a:b}- -{zh-hans;zh-hant|c}-", "\u539f a:b c"),
        ("-{a {{t}} b}-", "a b"),
        ("1-{2} and -{{t}}-", "1-{2} and --"),
    ],
)
def test_of_text_in_several_scripts_one_is_kept(markup, text):
    assert plain_text(markup, Site()) == text
