#!/bin/sh
# take-part.sh OUT WORD...: `fedgossip WORD... --out OUT`, or with --resume where OUT holds an earlier life.
# So the same line starts a participant for the first time, and after a crash or a restart of the machine.
set -eu
out=$1
shift
if [ -e "$out/incarnation" ]; then
    set -- "$@" --resume
fi
exec fedgossip "$@" --out "$out"
