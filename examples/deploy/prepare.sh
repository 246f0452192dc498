#!/bin/sh
# prepare.sh FOLDER: keys, endpoints and policies of a coordinator and three clients, a folder each, to try it out.
# For a real run everyone makes a key at home and sends the block that is printed: docs/coordinator.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
address=${ADDRESS:-tcp://coordinator:5700}
umask 077
mkdir -p "$1"
cd "$1"
for id in 0 1 2 3; do
    name=client-$id
    [ "$id" = 3 ] && name=coordinator
    mkdir "$name"
    cp "$here/experiment.toml" "$name/"
    if [ "$id" = 3 ]; then
        fedgossip keys new --id 3 --address "$address" --out coordinator/peer.key
    else
        fedgossip keys new --id "$id" --client --out "$name/peer.key"
    fi >>endpoints.toml
done
for name in client-0 client-1 client-2 coordinator; do
    cp endpoints.toml "$name/"
done
for id in 0 1 2; do
    (cd "client-$id" && fedgossip privacy policy experiment.toml --endpoints endpoints.toml >/dev/null)
done
