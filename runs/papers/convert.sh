#!/usr/bin/env bash
# Henderson et al., ConveRT (2020): pre-training at full size, probes, ablations, and fine-tuning on DSTC7.
#   DATA=folder PARTS="pretrain probes ablations tune" EXTRA="--set train.max_steps=2" SMALL=1 bash runs/papers/convert.sh
# To use the papers' own files, put them into runs/work/papers/data. A stopped run resumes when you start it again.
# Writes runs/work/papers/convert (not in git): a model and figures (R100@1 of groups of 100) for each part.
. "$(dirname "$0")/common.sh"
PARTS=${PARTS:-pretrain probes tune}
OUT=$WORK/convert
GROUPS_OF=$([[ $SMALL ]] && echo 10 || echo 100)
scratch=()
[[ $SMALL ]] && scratch=(--set text.min_count=2)

train() { # NAME RECIPE DATA [--set ...]
  local name=$1 recipe=$2 data=$WORK/data/$3
  shift 3
  # shellcheck disable=SC2086  # EXTRA is several words
  polyrank train "runs/papers/$recipe.toml" --set "output=$OUT/$name" --set "data.train=$data/train.jsonl" \
    --set "data.valid=$data/valid.jsonl" "$@" "${SETS[@]}" $EXTRA --resume
}

judge() { # NAME FILE-ENDING [OPTION ...]
  local name=$1 file=$OUT/$1$2.json
  shift 2
  polyrank evaluate "$OUT/$name" "$@" ${LIMIT:+--limit "$LIMIT"} --metric R@1,MRR --json >"$file"
  echo "$name $(cat "$file")"
}

# Table 4; C: the same span in every layer
declare -A ABLATION=(
  [a]="model.n_heads=8" [b]="model.relative_bias=false" [c]="model.spans=[48,48,48,48,48,48]" [d]="text.n_buckets=1"
  [e]="model.reduction_heads=1" [f]="model.side_skips=false"
)

prepare reddit pairs json reddit
reddit=$WORK/data/reddit/test.jsonl
for part in $PARTS; do
  case $part in
    pretrain) # Table 3
      train pretrain convert reddit "${scratch[@]}"
      judge pretrain "" "$reddit" --groups "$GROUPS_OF"
      ;;
    probes) # section 4: the immediate context's sub-network, and no earlier turns
      judge pretrain -immediate "$reddit" --groups "$GROUPS_OF" --probe immediate
      judge pretrain -no-earlier-turns "$reddit" --groups "$GROUPS_OF" --last-turns 1
      ;;
    ablations)
      for name in none a b c d e f d-e-f b-c-d-e-f; do
        sets=("${scratch[@]}" --set model.multi_context=false)
        [[ $name == none ]] || for letter in ${name//-/ }; do sets+=(--set "${ABLATION[$letter]}"); done
        train "ablation-$name" convert reddit "${sets[@]}"
        judge "ablation-$name" "" "$reddit" --groups "$GROUPS_OF"
      done
      ;;
    tune) # Table 5
      prepare dstc7 dstc7 json dstc7
      train dstc7 convert-tune dstc7 --set "train.init_from=$OUT/pretrain/model"
      judge dstc7 "" "$WORK/data/dstc7/test.jsonl"
      ;;
  esac
done
