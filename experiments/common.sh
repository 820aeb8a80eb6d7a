# shellcheck shell=bash
# What the scripts that train side by side have in common. They set ROOT, the checkout, and source this.

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

# Checks JOBS, chooses GNU parallel or xargs (`xargs` is 1 for that), finds PYTHON, collects `options` of GNU parallel.
prepare() {
    case ${JOBS:-1} in
        0 | *[!0-9]*) refuse "JOBS is '$JOBS'; allowed: an integer of at least 1" ;;
    esac
    xargs=
    # moreutils has another program of the same name.
    if ! parallel --version 2>/dev/null </dev/null | grep -q '^GNU parallel'; then
        command -v xargs >/dev/null ||
            refuse "GNU parallel and xargs are missing; apt-get install parallel (Debian) or brew install parallel (macOS)"
        xargs=1
    fi
    find_python
    options=(--will-cite --jobs "${JOBS:-100%}" --termseq "INT,30000,TERM,5000,KILL,25")
    [ ! -t 2 ] || options+=(--bar)
}

# Runs an exported function for every job, one argument a job, in a bash of its own: with GNU parallel, or with xargs
# where that is missing. Ctrl-C reaches the jobs, and begins no other. This waits until every job has written its
# checkpoint; then the script goes on to report, with `interrupted` set. LOGS is the folder for the file JOB_STOP, which
# is there after Ctrl-C, and empty (the variable) with GNU parallel.
in_parallel() { # FUNCTION JOB...
    local process
    # shellcheck disable=SC2034  # for the script that sources this
    interrupted=
    JOB_STOP=${xargs:+$LOGS/stop}
    export JOB_STOP
    export -f exec_job
    if [ -z "$xargs" ]; then
        trap 'interrupted=1' INT
        PARALLEL_SHELL=$(command -v bash) parallel "${options[@]}" "$1" ::: "${@:2}" </dev/null || true
        return
    fi
    echo "GNU parallel is missing (apt-get install parallel), so there is no bar and no time left; xargs starts the jobs"
    rm -f "$JOB_STOP"
    trap 'interrupted=1; : >"$JOB_STOP"' INT
    printf '%s\n' "${@:2}" | xargs -n 1 -P "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" "$BASH" -c "$1 \"\$1\"" _ &
    process=$!
    while kill -0 "$process" 2>/dev/null; do wait "$process" || true; done
    rm -f "$JOB_STOP"
}

# Prints the last line of each job without a file LOGS/JOB.done. Ends with 130 after Ctrl-C, with 1 if there is such a job.
end_unless_finished() { # HOW_TO_GO_ON JOB...
    local name status=0
    for name in "${@:2}"; do
        [ ! -e "$LOGS/$name.done" ] || continue
        [ $status = 1 ] || echo "${0##*/}: these did not finish ($1):" >&2
        echo "  $name: $(tail -n 1 "$LOGS/$name.log" 2>/dev/null) [$LOGS/$name.log]" >&2
        status=1
    done
    [ -z "$interrupted" ] || exit 130
    [ $status = 0 ] || exit 1
}

# Replaces the shell of a job by its program. What a shell starts in the background, as xargs, does not hear Ctrl-C: the
# program does again, and begins only before Ctrl-C.
# shellcheck disable=SC2329  # called in jobs
exec_job() { # COMMAND...
    [ -n "$JOB_STOP" ] || exec "$@"
    exec "$PYTHON" -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
if os.path.exists(sys.argv[1]):
    sys.exit(130)
os.execvp(sys.argv[2], sys.argv[2:])' "$JOB_STOP" "$@"
}
