#!/usr/bin/env bash
# An arm64 machine, emulated: digests beside this machine's, and a run of two together.  By hand, as root, on Debian:
#
#     apt-get install debootstrap qemu-user-static
#     bash tests/arm64.sh FOLDER          # about 1 GB; a quarter of an hour
#
# torch is the last version whose wheel for aarch64 needs no CUDA libraries; all else is as pip finds it.
set -euo pipefail
root=$(realpath "$(dirname "$0")/..") python="$root/.venv/bin/python"
mkdir -p "$1" && cd "$1" && folder=$PWD
export PYTHONDONTWRITEBYTECODE=1

[ -e debian ] || {
    debootstrap --foreign --arch=arm64 --variant=minbase --include=python3 bookworm debian
    for package in debian/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" debian; done
}
platforms=(--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_26_aarch64
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64)
[ -e wheels ] || {
    mapfile -t needed < <("$python" -c "import pathlib, tomllib
print(*tomllib.loads(pathlib.Path('$root/pyproject.toml').read_text())['project']['dependencies'], sep='\n')" | grep -v torch)
    "$python" -m pip install --quiet --target wheels --only-binary=:all: "${platforms[@]}" \
        --python-version 3.11 --implementation cp "${needed[@]}" filelock typing-extensions sympy jinja2 fsspec
    "$python" -m pip install --quiet --target wheels --only-binary=:all: "${platforms[@]}" \
        --python-version 3.11 --implementation cp --no-deps torch==2.6.0
}

emulated() {
    qemu-aarch64-static -L "$folder/debian" -E PYTHONPATH="$root:$folder/wheels" "$folder/debian/usr/bin/python3.11" "$@"
}

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
(cd here && "$python" -m fedgossip host ../pair.toml --peers 2 --address 127.0.0.1 > host.txt) & host=$!
for _ in $(seq 120); do grep -q "^fedgossip join fg1-" here/host.txt 2> /dev/null && break; sleep 0.5; done
invite=$(sed -n 's/^fedgossip join \(fg1-[^ ]*\)$/\1/p' here/host.txt)
(cd there && emulated -m fedgossip join "$invite" --yes)
wait "$host"
grep "^Test accuracy" here/host.txt
