"""The codes that a language may be named by.

The sentence splitter takes any word for a language, and cuts an unknown one as English, without a word: a German
text under ``de-DE`` or ``deu`` would end a sentence after each "bzw.". So a code is compared with these lists. They say
that it is a code, not that the splitter has rules for it. It has rules for about 30 languages, and cuts many
others as a related language (``lb`` as ``de``, ``ba`` as ``ru``). The rest, such as Korean, Swedish and Turkish, are
cut as English.

Models that identify languages have codes of their own, such as ``deu_Latn``; `code_of_label` reads them.
"""

import re

UNSPACED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
"""A character of Thai, Lao, Burmese, Khmer, Chinese or Japanese, which put no spaces between words."""
_OTHERS = """
    abs ace ady aeb aln als alt ami ang anp arn arq ary arz ast atj avk awa azb ban bar bat-smg bbc bcc bci bdr
    be-tarask bew bgn bhb bho bjn blk bpy bqi btm bug bxr cbk-zam cdo ceb ckb cpx crh csb de-at de-ch de-formal dsb
    dtp dty ekh eml es-formal ext fit fiu-vro fon frc frp frr fur gag gan gcf gcr gld glk gom gor gsw guc hak hif
    hke hrx hsb hsn hu-formal hyw iba ilo inh jny jut kaa kab kbd kbp kea khw kiu kjh kjp kk-arab kk-cn kk-cyrl
    kk-kz kk-latn kk-tr ko-kp koi krc krl ks-arab ksh ksw ku-arab ku-latn kum lad lbe lez lij liv lld lmo lrc ltg
    lua luz lzh lzz mad mag mai map-bms mdf mhr min mnc mrj ms-arab mwl myv mzn nah nan nan-latn-tailo nap nds
    nds-nl nia nl-informal nrf nrm nyo olo pcd pdc pdt pfl pms pnb pnt pt-br pwn qug rgn rki rmy roa-rup rsk rue
    rup ruq sah scn sdc sdh se-fi se-no se-se ses sgs sh-cyrl sh-latn shi shy simple sjd skr sli sma smn sr-ec
    sr-el srn stq sty szl tay tcy tet tg-cyrl tg-latn trv tt-cyrl tyv udm ug-arab vec vep vls vmf vmw vot vro war
    wls wuu xal xmf yue zh-classical zh-cn zh-hans zh-hant zh-hk zh-min-nan zh-mo zh-my zh-sg zh-tw zh-yue"""
WIKIPEDIA_CODES = frozenset(_OTHERS.split())
"""Codes of Wikipedia for languages without two letters of their own, and for variants of a language."""

_THREE_LETTERS = """
    aar aa abk ab afr af aka ak als sq amh am ara ar arb ar arg an asm as ava av ave ae aym ay ayr ay aze az azj az
    bak ba bam bm bel be ben bn bis bi bod bo bos bs bre br bul bg cat ca ces cs cha ch che ce chu cu chv cv cmn zh
    cor kw cos co cre cr cym cy dan da deu de div dv dzo dz ekk et ell el eng en epo eo est et eus eu ewe ee fao fo
    fas fa fij fj fil tl fin fi fra fr fry fy ful ff fuv ff gaz om gla gd gle ga glg gl glv gv grn gn gug gn guj gu
    hat ht hau ha hbs sh heb he her hz hin hi hmo ho hrv hr hun hu hye hy ibo ig ido io iii ii iku iu ile ie ina ia
    ind id ipk ik isl is ita it jav jv jpn ja kal kl kan kn kas ks kat ka kau kr kaz kk khk mn khm km kik ki kin rw
    kir ky kmr ku knc kr kom kv kon kg kor ko kua kj kur ku lat la lav lv lim li lin ln lit lt ltz lb lub lu
    lug lg lvs lv mah mh mal ml mar mr mkd mk mlg mg mlt mt mon mn mri mi msa ms mya my nau na nav nv nbl nr nde nd
    ndo ng nep ne nld nl nno nn nob no nor no npi ne nya ny oci oc oji oj ori or orm om ory or oss os pan pa pbt ps
    pes fa pli pi plt mg pol pl por pt prs fa pus ps que qu quy qu roh rm ron ro run rn rus ru sag sg san sa sin si
    slk sk slv sl sme se smo sm sna sn snd sd som so sot st spa es sqi sq srd sc srp sr ssw ss sun su swa sw swe sv
    swh sw tah ty tam ta tat tt tel te tgk tg tgl tl tha th tir ti ton to tsn tn tso ts tuk tk tur tr twi tw uig ug
    ukr uk urd ur uzb uz uzn uz uzs uz ven ve vie vi vol vo wln wa wol wo xho xh ydd yi yid yi yor yo zha za zho zh
    zsm ms zul zu"""
TWO_OF_THREE = dict(zip(_THREE_LETTERS.split()[::2], _THREE_LETTERS.split()[1::2], strict=True))
"""Codes of two letters for codes of three (ISO 639-3). A variety with a label of its own in models, such as Standard
Arabic or Iranian Persian, has the code of its language."""
ISO_639_1 = frozenset((*TWO_OF_THREE.values(), "bh", "lo", "mo", "nb"))
"""Two letters per language, which most have."""
KNOWN = ISO_639_1 | WIKIPEDIA_CODES
"""Codes that a language may be named by."""
_IDENTIFIED = {"zh-yue": "yue", "zh-min-nan": "nan", "zh-classical": "lzh", "simple": "en", "nb": "no"}
"""Codes for which models have another, quite different code. Cantonese is no variant of Mandarin (``zh``)."""
_NAMES = """
    afrikaans af albanian sq amharic am arabic ar armenian hy azerbaijani az basque eu belarusian be bengali bn bosnian
    bs bulgarian bg burmese my cantonese yue catalan ca chinese zh croatian hr czech cs danish da dutch nl english en
    esperanto eo estonian et farsi fa finnish fi french fr galician gl georgian ka german de greek el gujarati gu hausa
    ha hebrew he hindi hi hungarian hu icelandic is indonesian id irish ga italian it japanese ja kannada kn kazakh kk
    khmer km korean ko latin la latvian lv lithuanian lt macedonian mk malay ms malayalam ml maltese mt mandarin
    zh marathi mr mongolian mn nepali ne norwegian no persian fa polish pl portuguese pt punjabi pa romanian ro russian
    ru sanskrit sa serbian sr sinhala si slovak sk slovene sl slovenian sl somali so spanish es swahili sw swedish sv
    tagalog tl tamil ta telugu te thai th tibetan bo turkish tr ukrainian uk urdu ur uzbek uz vietnamese vi welsh cy
    yiddish yi yoruba yo zulu zu alb sq arm hy baq eu bur my chi zh cze cs dut nl fre fr geo ka ger de gre el ice is mac
    mk mao mi may ms per fa rum ro slo sk tib bo wel cy"""
CODE_OF_NAME = dict(zip(_NAMES.split()[::2], _NAMES.split()[1::2], strict=True))
"""Codes for English names and for the bibliographic codes of ISO 639-2, which are suggested and not accepted."""
UNDETERMINED = "und"
"""Code of a text that no language can be told of (ISO 639-3)."""
AUTO = "auto"
"""Instead of a code: the language of each document is identified."""
# An ISO 639 code, perhaps with more after a hyphen as Wikipedia has it, and a script: deu_Latn, bat-smg, zh-Hans.
LABEL = re.compile(r"(?P<code>[a-z]{2,3}(?:-[a-z]+)*)(?P<script>[_-][A-Z][a-z]{3})?")


def code_of_label(label: str) -> str | None:
    """Return the code of a language that a model names in another way; None for a label that names no language.

    Args:
        label: Such as ``de``, ``deu_Latn`` or ``als``, which is Alemannic as a code of a Wikipedia, and Tosk Albanian
            with a script, as then it is a code of ISO 639-3.
    """
    match = LABEL.fullmatch(label)
    if match is None:
        return None
    code = match["code"]
    if not match["script"] and code in WIKIPEDIA_CODES:
        return code
    return identified_code(TWO_OF_THREE.get(code, code))


def is_language_label(label: str) -> bool:
    """Return whether a model's label surely names a language: its code is known, or it has a script, as ``dyu_Latn``.

    Words of two or three letters, such as ``pos`` and ``ham``, look like codes.
    """
    match = LABEL.fullmatch(label)
    return match is not None and (match["script"] is not None or code_of_label(label) in KNOWN)


def identified_code(code: str) -> str:
    """Return the code by which models know a language: ``pt`` for ``pt-br``, ``no`` for ``nb``; most have one code."""
    if code in _IDENTIFIED:
        return _IDENTIFIED[code]
    first = code.split("-")[0]
    return first if first in ISO_639_1 else code


def require_language(code: str, known: frozenset[str] = KNOWN) -> str:
    """Return a code that is known.

    Raises:
        ValueError: It is not; the message names the code that is likely meant, if there is one.
    """
    if code in known:
        return code
    first = code.lower().replace("_", "-").split("-")[0]
    # de of de-DE, sv of swe and of swedish; the first letters of a name would say Swahili
    likely = (first, TWO_OF_THREE.get(first, ""), CODE_OF_NAME.get(first, ""))
    near = next((name for name in likely if name in known), None)
    hint = f"; did you mean {near}?" if near else ", such as en, de or zh"
    raise ValueError(f"{code!r} is no language code of two letters (ISO 639-1) or of a Wikipedia{hint}")


def require_language_or_auto(code: str) -> str:
    """Return a code that is known, or ``auto``.

    Raises:
        ValueError: It is neither.
    """
    return code if code == AUTO else require_language(code)


def require_identifiable(code: str) -> str:
    """Return a code that is known, or one of three letters for a language without one of two.

    Raises:
        ValueError: It is neither. Whether the model knows it is checked when the model is read.
    """
    is_of_three = re.fullmatch("[a-z]{3}", code) and code not in TWO_OF_THREE
    return code if is_of_three else require_language(code)
