# packages.sh - sourced by ./run and ./check: installs the Debian packages that are missing.
# shellcheck shell=sh

# need_packages NAME...: installs what is missing; where that is not permitted, prints the exact
# command and stops. Elsewhere than on Debian or its kin, says what is needed and goes on.
need_packages() {
    if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
        echo "Not a Debian-like system. Needed, by Debian's names: $*" >&2
        return 0
    fi
    missing=
    for package in "$@"; do
        status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
        [ "$status" = "install ok installed" ] || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0

    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root="sudo"
    else
        echo "Missing packages, and no permission to install them. As root, run:" >&2
        echo "  apt-get update && apt-get install -y --no-install-recommends$missing" >&2
        exit 1
    fi
    echo "Installing:$missing" >&2
    # shellcheck disable=SC2086 # lists of words
    if ! { $as_root apt-get update -qq &&
           DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends \
               $missing >/dev/null; } >&2; then
        echo "apt-get failed for:$missing" >&2
        exit 1
    fi
}

# What it takes to build the library and the tool.
# shellcheck disable=SC2034 # used by those who source this
BUILD_PACKAGES="gcc libc6-dev cmake ninja-build pkg-config libdlpack-dev libcjson-dev libzip-dev"
