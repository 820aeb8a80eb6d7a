# shellcheck shell=bash
# What the scripts that train with GNU parallel have in common. They set ROOT, the checkout, and source this.

refuse() { # LINE
    echo "${0##*/}: $1" >&2
    exit 2
}

find_python() {
    if [ -z "${PYTHON:-}" ]; then
        PYTHON=$ROOT/.venv/bin/python
        [ -x "$PYTHON" ] || PYTHON=python3
    fi
    command -v "$PYTHON" >/dev/null || refuse "PYTHON is '$PYTHON', which is no program"
    export PYTHON ROOT OMP_NUM_THREADS=1
}

# Checks JOBS and GNU parallel, finds PYTHON, collects `options` for `in_parallel`. With `or_xargs`, `xargs` is 1 where
# only that is there.
prepare() { # [or_xargs]
    case ${JOBS:-1} in
        0 | *[!0-9]*) refuse "JOBS is '$JOBS'; allowed: an integer of at least 1" ;;
    esac
    # shellcheck disable=SC2034  # for the script that sources this
    xargs=
    # moreutils has another program of the same name.
    if parallel --version 2>/dev/null </dev/null | grep -q '^GNU parallel'; then
        :
    elif [ "${1:-}" = or_xargs ] && command -v xargs >/dev/null; then
        # shellcheck disable=SC2034
        xargs=1
    else
        refuse "GNU parallel is missing; apt-get install parallel (Debian, Ubuntu) or brew install parallel (macOS)"
    fi
    find_python
    options=(--will-cite --jobs "${JOBS:-100%}" --termseq "INT,30000,TERM,5000,KILL,25")
    [ ! -t 2 ] || options+=(--bar)
}

# Passes Ctrl-C on and waits until every job has written its checkpoint; the shell stays to report, `interrupted`.
in_parallel() { # FUNCTION [::: ARGUMENTS]...
    # shellcheck disable=SC2034  # for the script that sources this
    interrupted=
    trap 'interrupted=1' INT
    PARALLEL_SHELL=$(command -v bash) parallel "${options[@]}" "$@" </dev/null || true
}
