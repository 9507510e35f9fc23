#!/bin/sh
# Installs llm-perf from the wheels beside this file. Reaches no network.
#
#   sh install.sh            makes an environment in ./venv beside this file; it sees the packages of the
#                            system, such as PyTorch. VENV=DIR sh install.sh puts it elsewhere
#   sh install.sh PYTHON     installs into the Python given, for example that of an environment of yours
set -eu

case "${1:-}" in
    -h | --help)
        sed -n '2,6s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
esac

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
fits='import sys; sys.exit(sys.version_info[:2] != (@MAJOR@, @MINOR@))'

if command -v sha256sum >/dev/null 2>&1; then
    (cd "$here" && sha256sum --quiet -c SHA256SUMS) || {
        echo "install.sh: files of this bundle are damaged; copy it again." >&2
        exit 1
    }
fi

if [ $# -gt 0 ]; then
    python=$1
    "$python" -c "$fits" >/dev/null 2>&1 || {
        echo "install.sh: $python is not a working Python @PYTHON@, and these wheels are for Python @PYTHON@." >&2
        exit 3
    }
else
    base=''
    for candidate in python@PYTHON@ python3 python; do
        if "$candidate" -c "$fits" >/dev/null 2>&1; then base=$candidate; break; fi
    done
    if [ -z "$base" ]; then
        echo "install.sh: no Python @PYTHON@ found (tried python@PYTHON@, python3, python)." >&2
        echo "If you have one elsewhere: sh install.sh /path/to/python@PYTHON@" >&2
        exit 3
    fi
    venv=${VENV:-$here/venv}
    "$base" -P -m venv --system-site-packages "$venv" || {
        echo "install.sh: $base cannot make an environment." >&2
        echo "On Debian and Ubuntu: apt install python@PYTHON@-venv" >&2
        echo "Or give a Python to install into: sh install.sh /path/to/python@PYTHON@" >&2
        exit 3
    }
    python=$venv/bin/python
fi

# Only the files of the list, each with its hash: whatever else lies in the folder is not even looked at.
private=$(mktemp -d)
trap 'rm -rf "$private"' EXIT
while read -r wheel hash; do
    ln -s "$here/$wheel" "$private/"
done <"$here/wheels.txt"

pip_install() {
    # -P: not even a module that lies in the folder we are in.
    "$python" -P -m pip install --quiet --disable-pip-version-check --no-index --only-binary :all: "$@"
}
product=llm-perf-opt
if grep -q '^wheels/ncu_report-' "$here/wheels.txt"; then product='llm-perf-opt[ncu]'; fi
# What is missing: packages that are there stay, where their versions do.
pip_install --find-links "$private" --dry-run --report "$private/plan.json" \
    --upgrade --upgrade-strategy only-if-needed "$product" >/dev/null
# Itself in any case: a newer bundle may carry the same version number.
"$python" -P -c '
import json, sys, urllib.parse
plan = json.load(open(sys.argv[1], encoding="utf-8"))["install"]
names = {urllib.parse.unquote(item["download_info"]["url"].rpartition("/")[2]) for item in plan}
for line in open(sys.argv[2], encoding="utf-8"):
    name = line.split()[0].rpartition("/")[2]
    if name in names or name.startswith("llm_perf_opt-"):
        print("./" + line, end="")
' "$private/plan.json" "$here/wheels.txt" >"$private/chosen.txt"
(cd "$here" && pip_install --no-deps --force-reinstall --require-hashes --requirement "$private/chosen.txt") || {
    echo "install.sh: nothing was installed: a wheel does not have the hash of wheels.txt, or pip failed (see above)." >&2
    echo "Copy the bundle again from where it was made." >&2
    exit 1
}
if [ -f "$here/NCU_REPORT_LICENSE.rst" ]; then
    echo "ncu-report is NVIDIA's; its licence: $here/NCU_REPORT_LICENSE.rst"
elif ! "$python" -P -c 'import ncu_report' >/dev/null 2>&1; then
    echo "To read .ncu-rep files, NVIDIA's ncu-report is needed: an installed Nsight Compute brings it, or: pip install ncu-report"
fi
scripts=$("$python" -P -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
echo "Installed: $scripts/llm-perf"
