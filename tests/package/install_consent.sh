#!/bin/sh
# install_consent.sh SCRIPTS - packages are installed only when that was agreed to: by --yes or by the CI variable.
# Debian's programs are stand-ins that say "missing" and note what they were asked to do.
set -eu
scripts=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
printf '#!/bin/sh\nexit 1\n' >"$work/bin/dpkg-query"
# shellcheck disable=SC2016 # expanded when the stand-in runs
printf '#!/bin/sh\necho "$*" >>"%s/calls"\n' "$work" >"$work/bin/apt-get"
printf '#!/bin/sh\necho 0\n' >"$work/bin/id"
chmod +x "$work"/bin/*

# expect STATUS INSTALLS VARIABLE...: need_packages in that environment, without a terminal.
expect() {
    wanted=$1 installs=$2
    shift 2
    rm -f "$work/calls"
    status=0
    # shellcheck disable=SC2016
    env -u CI "$@" PATH="$work/bin:$PATH" sh -c '. "$1/packages.sh"; assume_yes=${yes:-}; need_packages one two' sh "$scripts" \
        </dev/null >"$work/out" 2>&1 || status=$?
    called=$(grep -c '^install .* one two$' "$work/calls" 2>/dev/null || true)
    if [ "$status" != "$wanted" ] || [ "${called:-0}" != "$installs" ] ||
        ! grep -q 'apt-get install -y --no-install-recommends one two$' "$work/out"; then
        echo "with $*: status $status, expected $wanted; ${called:-0} installs, expected $installs:"
        cat "$work/out"
        exit 1
    fi
}
expect 1 0 A=b
expect 1 0 CI=
expect 1 0 CI=false
expect 0 1 CI=true
expect 0 1 yes=yes
echo "asked first: 5 cases"
