#!/usr/bin/env bash
# Tao et al., mutual learning (2021): Tables 1 to 3 and Figures 2 to 4, each printed: published, polyrank's, difference.
#   DATA=folder PARTS="dstc7 ubuntu-v2 pool" BACKBONE=name-or-folder EXTRA="--set train.max_steps=2" LIMIT=test-examples SMALL=1 \
#     bash runs/papers/tao.sh
# PARTS: dstc7 and ubuntu-v2 train the models and evaluate them on lists; pool evaluates those of dstc7 on subtask 2.
# To use the paper's own files, put them into runs/work/papers/data. A stopped run resumes when you start it again.
# Writes runs/work/papers/tao (not in git): models and figures by part, and the drawings as SVG.
. "$(dirname "$0")/common.sh"
PARTS=${PARTS:-dstc7 ubuntu-v2 pool}
OUT=$WORK/tao
lengths=(10 50 100 200 500 800)
[[ $SMALL ]] && SETS+=(--set train.negatives.n=3) && lengths=(10 50)

learn() { # TASK NAME RECIPE [OPTION ...]
  # shellcheck disable=SC2086  # EXTRA is several words
  polyrank train "runs/papers/$3.toml" --set "model.backbone=$BACKBONE" --set "output=$OUT/$1/$2" \
    --set "data.train=$FILES/$1/train.jsonl" --set "data.valid=$FILES/$1/valid.jsonl" "${@:4}" "${SETS[@]}" $EXTRA --resume
}

judge() { # PART NAME AGAINST MODEL [OPTION ...]: AGAINST names the result of the paired tests, or is empty
  local against=()
  [[ $3 ]] && against=(--against "$OUT/$1/$3.scores.jsonl")
  evaluate "tao/$1/$2.json" "${@:4}" "${options[@]}" --scores "$OUT/$1/$2.scores.jsonl" "${against[@]}"
}

for part in $PARTS; do
  task=${part/pool/dstc7}
  bi=$OUT/$task/bi cross=$OUT/$task/cross poly=$OUT/$task/poly
  first=$OUT/$task/mutual/retriever/model second=$OUT/$task/mutual/reranker/model
  if [[ $part != pool ]]; then
    case $task in
      dstc7) prepare dstc7 dstc7 json dstc7 --every-turn ;; # the paper's 2 million pairs of 100,000 dialogues
      ubuntu-v2) prepare ubuntu-v2 ubuntu-v2 csv ubuntu-v2 ;;
    esac
    learn "$task" bi tao-bi
    learn "$task" cross tao-cross
    learn "$task" mutual tao --set "reranker.backbone=$BACKBONE"
    test=$FILES/$task/test.jsonl options=(--metric R@1,R@2,R@5,R@10,R@50,MRR --breakdown tokens)
    [[ $task == ubuntu-v2 ]] && options=(--metric R@1,R@2,R@5,MRR)
    judge "$part" bi "" "$bi" "$test"
    judge "$part" cross "" "$cross" "$test"
    judge "$part" bi-mutual bi "$first" "$test"
    judge "$part" cross-mutual cross "$second" "$test"
    judge "$part" ensemble cross "$first" "$test" --rerank "$second" --combine raw # as-printed: as Eqs. 5 and 10 are printed
  fi
  case $part in
    dstc7) # Table 2
      learn dstc7 poly tao-bi --set model.kind=poly --set model.n_codes=64 --set model.code_init=uniform \
        --set model.projection_dim=none --set model.equal_projections=true
      judge dstc7 poly "" "$poly" "$test"
      judge dstc7 two-stage cross "$first" "$test" --rerank "$second" --n-retrieved 10
      judge dstc7 two-stage-ensemble cross "$first" "$test" --rerank "$second" --n-retrieved 10 --combine raw
      speed tao/speed.json auto -n 10 -n 100 --kind Bi --kind Poly-64 --kind Cross
      ;;
    pool) # Table 3 and Figure 2
      data=$FILES/dstc7 answers=() candidates=$FILES/dstc7/pool.tsv
      [[ -e $data/pool.answers.tsv ]] && answers=(--answers "$data/pool.answers.tsv")
      if [[ $SMALL ]]; then # the right answers of the first examples, and 500 others
        cut -f2 "$data/pool.answers.tsv" | head -n "$LIMIT" | awk -F'\t' 'NR == FNR { right[$1]; next } FNR <= 500 || $1 in right' - \
          "$candidates" >"$data/pool.small.tsv"
        candidates=$data/pool.small.tsv
      fi
      [[ -e $data/pool.jsonl ]] || polyrank import corpus dstc7-pool "$data/pool.json" -o "$data/pool.jsonl" "${answers[@]}"
      polyrank import corpus dstc7-candidates "$candidates" -o "$data/candidates.jsonl" --overwrite
      test=$data/pool.jsonl options=(--pool "$data/candidates.jsonl" --metric R@1,R@2,R@5,R@10,R@50,MRR)
      judge dstc7-pool bm25 "" bm25 "$test"
      judge dstc7-pool bm25-cross "" bm25 "$test" --rerank "$cross/model"
      judge dstc7-pool bi "" "$bi" "$test"
      judge dstc7-pool bi-mutual "" "$first" "$test"
      judge dstc7-pool bm25-bi "" bm25 "$test" --rerank "$bi/model"
      judge dstc7-pool bm25-poly "" bm25 "$test" --rerank "$poly/model"
      judge dstc7-pool bm25-bi-mutual "" bm25 "$test" --rerank "$first"
      judge dstc7-pool bm25-cross-mutual "" bm25 "$test" --rerank "$second"
      judge dstc7-pool bi-cross "" "$bi/model" "$test" --rerank "$cross/model"
      judge dstc7-pool two-stage bm25-cross "$first" "$test" --rerank "$second"
      judge dstc7-pool ensemble bm25-cross "$first" "$test" --rerank "$second" --combine raw
      polyrank index build "$first" "$data/candidates.jsonl" -o "$OUT/index" --overwrite
      python runs/stages.py "$test" --index "$OUT/index" --rerank "$second" --rerank "$first" --combine none "${lengths[@]/#/-n}" \
        ${LIMIT:+--limit "$LIMIT"} >"$OUT/dstc7-pool/stages.json"
      ;;
  esac
done
show tao-1 tao-2 tao-3 tao-figure-2 tao-figure-4
runs=("$OUT"/dstc7/{bi,cross,mutual/retriever,mutual/reranker}/metrics.jsonl)
if [[ -e ${runs[0]} ]]; then
  printf '\n## Mutual learning, Figure 3: validation hits@1 by epoch (polyrank'\''s; the paper draws them without stating them)\n\n'
  python runs/curves.py "${runs[@]}"
  python runs/curves.py "${runs[@]}" -o "$WORK/tao-figure-3.svg"
fi
