#!/usr/bin/env bash
# Bi-encoder, Poly-encoder with 64 codes and Cross-encoder of BERT-base's size (runs/base.sh) on ubuntu-irc, on another machine: one with
# a GPU, within ten minutes, that reaches no network and takes files in parts.
#   DATA=folder bash runs/base_gpu.sh pack     here: the model with weights in bf16, data and missing libraries, as PARTS/part-*
#   bash runs/base_gpu.sh run [OUT]            there, with the parts: trains and evaluates; copies results and curves to OUT
#   python runs/record.py base-gpu/ubuntu-irc/MODEL OUT/MODEL.json    here again, for each model
# PARTS: a folder (runs/work/gpu); SIZE: of a part (30M); BUDGET: pairs; LIMIT: test examples; MODELS. A stopped run resumes when you start
# it again. Where a limit on all files applies, take models/polyrank_models/*/model.safetensors out of the copy: nothing here reads them.
set -euo pipefail
cd "$(dirname "$0")/.."
PARTS=${PARTS:-runs/work/gpu}
SIZE=${SIZE:-30M}
LIMIT=${LIMIT:-1000}
MODEL=runs/work/base/all-mpnet-base-v2
UNPACKED=$PARTS/unpacked

case ${1:-} in
  pack)
    DATA=$(realpath "${DATA:-../shared/data}")
    [[ -e $MODEL ]] || { echo "$MODEL is missing; run runs/base.sh, which installs it" && exit 2; }
    rm -rf "$PARTS"
    mkdir -p "$UNPACKED/wheels" "$UNPACKED/data/ubuntu-irc"
    cp -r "$MODEL" "$UNPACKED/model"
    python - "$MODEL/model.safetensors" "$UNPACKED/model/model.safetensors" <<'PY'
import sys

import torch
from safetensors.torch import load_file, save_file

source, target = sys.argv[1:]
save_file({name: weights.to(torch.bfloat16) for name, weights in load_file(source).items()}, target, {"format": "pt"})
PY
    rm -rf "$UNPACKED"/model/{onnx,openvino,pytorch_model.bin} # the same weights in other forms
    cp "$DATA/ubuntu-irc/train.jsonl.gz" "$UNPACKED/data/ubuntu-irc"
    zcat "$DATA/ubuntu-irc/test.jsonl.gz" | sed -n "1,${LIMIT}p" | gzip >"$UNPACKED/data/ubuntu-irc/test.jsonl.gz"
    pip download -q --no-deps -d "$UNPACKED/wheels" py3langid
    tar -C "$UNPACKED" -cf - . | split -b "$SIZE" -d - "$PARTS/part-"
    rm -r "$UNPACKED"
    ls -l "$PARTS"
    ;;
  run)
    if [[ ! -e $UNPACKED/whole ]]; then
      mkdir -p "$UNPACKED"
      cat "$PARTS"/part-* | tar -C "$UNPACKED" -xf -
      pip install -q --no-index --no-deps --target "$UNPACKED/site" "$UNPACKED"/wheels/*.whl
      mkdir -p "$UNPACKED/bin"
      { echo '#!/bin/sh' && echo 'exec python3 -m "polyrank" "$@"'; } >"$UNPACKED/bin/polyrank"
      chmod +x "$UNPACKED/bin/polyrank"
      command -v python || ln -s "$(command -v python3)" "$UNPACKED/bin/python"
      command -v git || ln -s "$(command -v false)" "$UNPACKED/bin/git" # then the results name no commit
      touch "$UNPACKED/whole"
    fi
    export PYTHONPATH=$PWD/src:$PWD/$UNPACKED/site PATH=$PWD/$UNPACKED/bin:$PATH
    START=$PWD/$UNPACKED/model NAME=base-gpu DATA=$PWD/$UNPACKED/data BUDGET=${BUDGET:-50150} LIMIT=$LIMIT DROPOUT=0.1 SETS=ubuntu-irc \
      SETTINGS=${SETTINGS:-train.lr=5e-5 train.checkpoint_steps=50} MODELS=${MODELS:-bi poly-64 cross} bash runs/real.sh
    mkdir -p "${2:-$PARTS/out}"
    for result in runs/work/base-gpu/ubuntu-irc/*.json; do
      model=$(basename "$result" .json)
      cp "$result" "${2:-$PARTS/out}"
      curve=runs/work/base-gpu/ubuntu-irc/$model/metrics.jsonl
      [[ ! -e $curve ]] || cp "$curve" "${2:-$PARTS/out}/$model.metrics.jsonl"
    done
    ;;
  *) sed -n '2,/^set/{/^#/p}' "$0" && exit 2 ;;
esac
