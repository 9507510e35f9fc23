#!/bin/sh
# Makes a Chromium available to the tests of report.html. Does nothing where there is one; installs Debian's or
# Ubuntu's package where that is possible without asking; otherwise says what to do, and fails.
set -eu

for name in ${LLM_PERF_CHROMIUM:-} chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done

advice='Install one (Debian: apt install chromium), or name one: LLM_PERF_CHROMIUM=/path/to/chromium'
if ! command -v apt-get >/dev/null 2>&1; then
    echo "install_chromium: no Chromium found, and no apt-get to install one. $advice" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "install_chromium: no Chromium found, and installing one needs root. $advice" >&2
    exit 1
fi
echo 'install_chromium: installing chromium for the tests of report.html ...'
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# Without fonts a page is rendered without text.
if ! { apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "install_chromium: apt-get could not install chromium. $advice" >&2
    exit 1
fi
