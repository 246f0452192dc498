#!/usr/bin/env bash
# An emulated machine: tests that need neither torch nor sockets; on arm64 also digests beside this machine's, and a run
# of two together.  By hand, as root, on Debian:
#
#     apt-get install debootstrap qemu-user-static
#     bash tests/emulated.sh arm64 FOLDER          # about 1 GB; a quarter of an hour
#     bash tests/emulated.sh s390x FOLDER          # the other byte order; half an hour
#
# arm64 has pip's wheels, of torch the last version whose wheel for aarch64 needs no CUDA libraries.  s390x has none, so
# its packages are Debian's newest.
set -euo pipefail
root=$(realpath "$(dirname "$0")/..") python="$root/.venv/bin/python" machine=$1
mkdir -p "$2" && cd "$2" && folder=$PWD
export PYTHONDONTWRITEBYTECODE=1

case $machine in
    arm64) qemu=qemu-aarch64-static suite=bookworm packages=python3 interpreter=python3.11 libraries=$folder/wheels ;;
    s390x) qemu=qemu-s390x-static suite=sid interpreter=python3 libraries=$folder/debian/usr/lib/python3/dist-packages
        packages=$(printf ',python3-%s' cffi-backend numpy msgspec cryptography networkx scipy zmq click rich threadpoolctl \
            tomli-w pytest pytest-timeout hypothesis websockets)
        packages=python3$packages ;;
    *) echo "arm64 or s390x" && exit 2 ;;
esac

[ -e debian ] || {
    debootstrap --foreign --arch="$machine" --variant=minbase --include="$packages" "$suite" debian
    for package in debian/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" debian; done
}

emulated() {
    local lib=$folder/debian/usr/lib/$machine-linux-gnu  # where packages that are only unpacked are not linked
    "$qemu" -L "$folder/debian" -E LD_LIBRARY_PATH="$lib/blas:$lib/lapack" -E PYTHONPATH="$root:$libraries" \
        "$folder/debian/usr/bin/$interpreter" "$@"
}

tested() {
    (cd "$root" && emulated -m pytest -p no:cacheprovider -q --timeout 1200 -m "not sockets and not root and not data" \
        tests/core/test_wire.py tests/core/test_records.py \
        tests/secure/test_sec{agg_reference,ure_primitives}.py "$@")
}

[ "$machine" = arm64 ] || { tested && exit; }

platforms=(--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_26_aarch64
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64)
[ -e wheels ] || {
    mapfile -t needed < <("$python" -c "import pathlib, tomllib
print(*tomllib.loads(pathlib.Path('$root/pyproject.toml').read_text())['project']['dependencies'], sep='\n')" | grep -v torch)
    "$python" -m pip install --quiet --target wheels --only-binary=:all: "${platforms[@]}" \
        --python-version 3.11 --implementation cp "${needed[@]}" filelock typing-extensions sympy jinja2 fsspec \
        pytest pytest-timeout hypothesis
    "$python" -m pip install --quiet --target wheels --only-binary=:all: "${platforms[@]}" \
        --python-version 3.11 --implementation cp --no-deps torch==2.6.0
}

tested tests/topology/test_mixing.py tests/protocols/gossip/test_invariants.py

cat > digests.py << 'END'
import fedgossip
GOSSIP = {"topology": {"graph": "ring", "n": 6}}
DIGITS = {"data": {"source": "digits", "partition": {"kind": "iid"}}, "train": {"local_steps": 3, "device": "cpu"}}
for case in (GOSSIP | {"task": {"kind": "averaging", "dim": 10}}, GOSSIP | {"task": {"kind": "quadratic", "dim": 10}},
             {"task": {"kind": "quadratic", "dim": 5}, "coordinator": {"clients": 5}}):
    print("equal", fedgossip.simulate(case | {"rounds": 20}).summary["digest"])
run = fedgossip.simulate(GOSSIP | DIGITS | {"rounds": 5}).summary
print("to rounding", run["score"]["averaged"])
END
PYTHONPATH="$root" "$python" digests.py > here.txt
emulated digests.py > there.txt
diff here.txt there.txt && cat there.txt

cat > pair.toml << 'END'
name = "pair"
rounds = 6
data = { source = "digits", partition = { kind = "iid" } }
train = { local_steps = 3, device = "cpu" }
topology = { graph = "complete", n = 2 }
algorithm = { deadline = 120 }
END
rm -rf here there && mkdir here there
(cd here && "$python" -m fedgossip host ../pair.toml --peers 2 --address 127.0.0.1 > host.txt 2>&1) & host=$!
for _ in $(seq 120); do grep -q "^fedgossip join fg1-" here/host.txt 2> /dev/null && break; sleep 0.5; done
invite=$(sed -n 's/^fedgossip join \(fg1-[^ ]*\)$/\1/p' here/host.txt)
(cd there && emulated -m fedgossip join "$invite" --yes)
wait "$host"
grep "^Test accuracy" here/host.txt
