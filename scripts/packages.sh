# packages.sh - sourced by ./run, ./check and bench/peers/run: installs the Debian packages that are
# missing, when it may.
# shellcheck shell=sh

# may_install: whether to change the system: told so (--yes sets assume_yes), in CI, or asked
# at a terminal.
may_install() {
    [ -z "$assume_yes" ] || return 0
    case ${CI:-} in
    "" | false | 0) ;;
    *) return 0 ;;
    esac
    [ -t 0 ] && [ -t 2 ] || return 1
    printf 'Run this now? [y/N] ' >&2
    read -r answer || return 1
    case $answer in
    [yY] | [yY][eE][sS]) ;;
    *) return 1 ;;
    esac
}

# need_packages NAME...: installs what is missing, having said what. Where that is not permitted or not
# wanted, prints the exact command and stops. On a system other than Debian or its kin, says what is needed and
# goes on.
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

    echo "Missing packages. To install them, as root:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends$missing" >&2
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root="sudo"
    else
        echo "There is no permission to do it from here." >&2
        exit 1
    fi
    if ! may_install; then
        echo "Nothing was installed. Run it yourself, or give --yes." >&2
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

# Set by --yes.
assume_yes=

# What it takes to build the library and the tool.
# shellcheck disable=SC2034 # used by those who source this
BUILD_PACKAGES="gcc libc6-dev cmake ninja-build pkg-config libdlpack-dev libcjson-dev libzip-dev"
