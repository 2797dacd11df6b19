"""The codes that a language may be named by.

The sentence splitter takes any word for a language, and cuts an unknown one as English, without a word: a German
text under ``de-DE`` or ``deu`` would end a sentence after each "bzw.". So a code is compared with these lists.
"""

_TWO_LETTERS = """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
    eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja
    jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mo mr ms mt my na
    nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn
    so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"""
ISO_639_1 = frozenset(_TWO_LETTERS.split())
"""Two letters per language, which most have."""
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
OF_THE_SPLITTER = frozenset(_OTHERS.split())
"""Codes without two letters of their own that the sentence splitter knows: languages of Wikipedia."""


def require_language(code: str, known: frozenset[str] = ISO_639_1 | OF_THE_SPLITTER) -> str:
    """Return a code that is known.

    Raises:
        ValueError: Nobody knows it; the message names the code that is likely meant.
    """
    if code in known:
        return code
    first = code.lower().replace("_", "-").split("-")[0]
    near = next((name for name in (first, first[:2]) if name in known), None)  # de of de-DE and of deu
    hint = f"; did you mean {near}?" if near else ", such as en, de or zh"
    raise ValueError(f"{code!r} is no language code of two letters (ISO 639-1) or of a Wikipedia{hint}")
