#!/usr/bin/env bash
# Henderson et al., ConveRT (2020): Tables 2 to 6 and the probes of section 4, each printed: published, polyrank's, difference.
#   DATA=folder PARTS="pretrain single ablations dstc7 amazonqa baselines intents" EXTRA="--set train.max_steps=2" SMALL=1 \
#     bash runs/papers/convert.sh
# PARTS: pretrain trains the multi-context model, single the single-context one, ablations its variants; dstc7 and amazonqa tune the first
# two; baselines are TF-IDF and a map on BERT=name-or-folder; intents train classifiers on single and on BERT.
# To use the papers' own files, put them into runs/work/papers/data. A stopped run resumes when you start it again.
# Writes runs/work/papers/convert (not in git): models, and figures by model and corpus.
. "$(dirname "$0")/common.sh"
PARTS=${PARTS:-pretrain single ablations dstc7 amazonqa baselines intents}
BERT=${BERT:-$([[ $SMALL ]] && echo "$BACKBONE" || echo hf:google-bert/bert-large-uncased)}
OUT=$WORK/convert
groups=(--metric R@1,MRR --groups "$([[ $SMALL ]] && echo 4 || echo 100)") # R100@1
scratch=()
[[ $SMALL ]] && scratch=(--set text.min_count=2 --set model.embedding_dim=64 --set model.ffn_dim=64 --set model.side_dim=64
  --set model.output_dim=64)

learn() { # NAME RECIPE DATA [OPTION ...]
  local name=$1 recipe=$2 data=$FILES/$3
  shift 3
  # shellcheck disable=SC2086  # EXTRA is several words
  polyrank train "runs/papers/$recipe.toml" --set "output=$OUT/$name" --set "data.train=$data/train.jsonl" \
    --set "data.valid=$data/valid.jsonl" "$@" "${SETS[@]}" $EXTRA --resume
}

tune() { # NAME MODEL DATA [OPTION ...]
  learn "$1" convert-tune "$3" --set "train.init_from=$OUT/$2/model" --set data.cache=none "${@:4}"
}

fit() { # NAME ENCODER DATA: a map of response vectors, which is selected on lists of 20, and its figures
  python runs/papers/response_map.py "$FILES/$3/train.jsonl" --valid "$FILES/$3/valid.jsonl" --encoder "$2" -o "$OUT/$1-$3.npz" \
    ${SMALL:+--max-train 40 --max-valid 4 --max-epochs 1}
  evaluate "convert/$1-$3.json" "$2" "$FILES/$3/test.jsonl" --map "$OUT/$1-$3.npz" "${groups[@]}"
}

from_scratch() { # NAME [OPTION ...]
  learn "$1" convert reddit "${scratch[@]}" --set "data.cache=$OUT/cache" "${@:2}"
  polyrank info "$OUT/$1/model" --json >"$OUT/$1.info.json"
  evaluate "convert/$1-reddit.json" "$OUT/$1" "$FILES/reddit/test.jsonl" "${groups[@]}"
}

# Table 4; C: the same span in every layer
declare -A ABLATION=(
  [a]="model.n_heads=8" [b]="model.relative_bias=false" [c]="model.spans=[48,48,48,48,48,48]" [d]="text.n_buckets=1"
  [e]="model.reduction_heads=1" [f]="model.side_skips=false"
)

mkdir -p "$OUT"
prepare reddit pairs json reddit
for part in $PARTS; do
  case $part in
    pretrain) # Table 3, and section 4: the immediate context's network, and no earlier turns
      from_scratch pretrain
      evaluate convert/pretrain-immediate-reddit.json "$OUT/pretrain" "$FILES/reddit/test.jsonl" "${groups[@]}" --probe immediate
      evaluate convert/pretrain-no-earlier-turns-reddit.json "$OUT/pretrain" "$FILES/reddit/test.jsonl" "${groups[@]}" --last-turns 1
      ;;
    single) from_scratch single --set model.multi_context=false ;;
    ablations) # Table 4
      for name in a b c d e f d-e-f b-c-d-e-f; do
        sets=(--set model.multi_context=false)
        for letter in ${name//-/ }; do sets+=(--set "${ABLATION[$letter]}"); done
        from_scratch "ablation-$name" "${sets[@]}"
      done
      ;;
    dstc7) # Table 5
      prepare dstc7 dstc7 json dstc7
      tune dstc7-pretrain pretrain dstc7
      tune dstc7-single single dstc7 --set model.multi_context=false --set text.number_prefixes=false
      for model in pretrain single; do
        evaluate "convert/$model-dstc7.json" "$OUT/dstc7-$model" "$FILES/dstc7/test.jsonl" --metric R@1,MRR
      done
      ;;
    amazonqa) # Table 3 and footnote 13
      prepare amazonqa pairs json amazonqa
      tune amazonqa-single single amazonqa --set model.multi_context=false --set text.number_prefixes=false
      evaluate convert/single-amazonqa.json "$OUT/amazonqa-single" "$FILES/amazonqa/test.jsonl" "${groups[@]}"
      evaluate convert/untuned-amazonqa.json "$OUT/single" "$FILES/amazonqa/test.jsonl" "${groups[@]}"
      fit map "$OUT/single/model" amazonqa
      ;;
    baselines) # Table 3
      prepare amazonqa pairs json amazonqa
      for data in reddit amazonqa; do
        evaluate "convert/tfidf-$data.json" tfidf "$FILES/$data/test.jsonl" "${groups[@]}"
        fit bert-map "untuned:$BERT" "$data"
      done
      ;;
    intents) # Table 6
      sets=(banking77 clinc150 hwu64) few=(--seeds 3)
      if [[ $SMALL ]]; then # the first two intents
        mkdir -p "$OUT/banking77"
        head -n 281 "$DATA/banking77/train.csv" >"$OUT/banking77/train.csv"
        head -n 81 "$DATA/banking77/test.csv" >"$OUT/banking77/test.csv"
        DATA=$OUT sets=(banking77) few=(--few-shot 2)
      fi
      for set in "${sets[@]}"; do
        for encoder in "single $OUT/single/model" "bert untuned:$BERT"; do
          polyrank intents train "$DATA/$set" --encoder "${encoder#* }" -o "$OUT/intents/${encoder%% *}-$set" "${few[@]}" --overwrite --json \
            >"$OUT/intents-${encoder%% *}-$set.json"
        done
      done
      ;;
  esac
done
show convert-2 convert-3 convert-4 convert-5 convert-6
