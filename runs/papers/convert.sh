#!/usr/bin/env bash
# Henderson et al., ConveRT (2020): pre-training at full size, its probes and ablations, fine-tuning on DSTC7.
#   DATA=folder PARTS="pretrain probes ablations tune" EXTRA="--set train.max_steps=2" bash runs/papers/convert.sh
# The papers' own files go into runs/work/papers/data, in place of the stand-ins. Interrupted, it goes on where it was.
# Writes runs/work/papers/convert (not kept): a model and figures (R100@1 of groups of 100) for each.
set -euo pipefail
cd "$(dirname "$0")/../.."
DATA=$(realpath -m "${DATA:-../shared/data}")
PARTS=${PARTS:-pretrain probes tune}
EXTRA=${EXTRA:-}
WORK=$PWD/runs/work/papers
OUT=$WORK/convert

prepare() { # FORMAT FOLDER ENDING
  [[ -e $WORK/data/$2/train.$3 ]] || python runs/papers/write_data.py "$DATA" "$WORK/data" "$2"
  for part in train valid test; do
    [[ -e $WORK/data/$2/$part.imported.jsonl ]] ||
      polyrank import "$1" "$WORK/data/$2/$part.$3" -o "$WORK/data/$2/$part.imported.jsonl"
  done
}

train() { # NAME RECIPE DATA [--set ...]
  local name=$1 recipe=$2 data=$WORK/data/$3
  shift 3
  # shellcheck disable=SC2086  # EXTRA is several words
  polyrank train "runs/papers/$recipe.toml" --set "output=$OUT/$name" --set "data.train=$data/train.imported.jsonl" \
    --set "data.valid=$data/valid.imported.jsonl" "$@" $EXTRA --resume
}

judge() { # NAME FILE-ENDING [OPTION ...]
  local name=$1 file=$OUT/$1$2.json
  shift 2
  polyrank evaluate "$OUT/$name" "$@" --metric R@1,MRR --json >"$file"
  echo "$name $(cat "$file")"
}

# Table 4; C is the same span in every layer
declare -A ABLATION=(
  [a]="model.n_heads=8" [b]="model.relative_bias=false" [c]="model.spans=[48,48,48,48,48,48]" [d]="text.n_buckets=1"
  [e]="model.reduction_heads=1" [f]="model.side_skips=false"
)

prepare pairs reddit jsonl
reddit=$WORK/data/reddit/test.imported.jsonl
for part in $PARTS; do
  case $part in
    pretrain) # Table 3
      train pretrain convert reddit
      judge pretrain "" "$reddit" --groups 100
      ;;
    probes) # section 4: the immediate context's sub-network, and no earlier turns
      judge pretrain -immediate "$reddit" --groups 100 --probe immediate
      judge pretrain -no-earlier-turns "$reddit" --groups 100 --last-turns 1
      ;;
    ablations)
      for name in none a b c d e f d-e-f b-c-d-e-f; do
        sets=(--set model.multi_context=false)
        [[ $name == none ]] || for letter in ${name//-/ }; do sets+=(--set "${ABLATION[$letter]}"); done
        train "ablation-$name" convert reddit "${sets[@]}"
        judge "ablation-$name" "" "$reddit" --groups 100
      done
      ;;
    tune) # Table 5
      prepare dstc7 dstc7 json
      train dstc7 convert-tune dstc7 --set "train.init_from=$OUT/pretrain/model"
      judge dstc7 "" "$WORK/data/dstc7/test.imported.jsonl"
      ;;
  esac
done
