#!/usr/bin/env bash
# Tao et al., mutual learning (2021): Tables 1 to 3 and Figures 2 to 4, on substitutes for DSTC7's files.
#   DATA=folder BACKBONE=name-or-folder EXTRA="--set train.max_steps=2" LIMIT=test-examples SMALL=1 bash runs/papers/tao.sh
# To use the paper's own files, put them into runs/work/papers/data. A stopped run resumes when you start it again.
# Writes runs/work/papers/tao (not in git): models, figures as JSON, and training.svg and stages.json (Figures 3 and 2).
. "$(dirname "$0")/common.sh"
OUT=$WORK/tao
data=$WORK/data/dstc7
lengths=(10 50 100 200 500 800)
[[ $SMALL ]] && SETS+=(--set train.negatives.n=3) && lengths=(10 20)

prepare dstc7 dstc7 json dstc7
answers=()
[[ -e $data/pool.answers.tsv ]] && answers=(--answers "$data/pool.answers.tsv")
pool=$data/pool.tsv
if [[ $SMALL ]]; then # the right answers of the first examples, and 500 others
  cut -f2 "$data/pool.answers.tsv" | head -n "$LIMIT" | awk -F'\t' 'NR == FNR { right[$1]; next } FNR <= 500 || $1 in right' - "$pool" \
    >"$data/pool.small.tsv"
  pool=$data/pool.small.tsv
fi
[[ -e $data/pool.jsonl ]] || polyrank import dstc7-pool "$data/pool.json" -o "$data/pool.jsonl" "${answers[@]}"
polyrank import dstc7-candidates "$pool" -o "$data/candidates.jsonl" --overwrite

for name in bi cross mutual; do
  recipe=tao-$name
  sets=(--set "model.backbone=$BACKBONE" --set "output=$OUT/$name" --set "data.train=$data/train.jsonl" --set "data.valid=$data/valid.jsonl")
  [[ $name == mutual ]] && recipe=tao && sets+=(--set "reranker.backbone=$BACKBONE")
  # shellcheck disable=SC2086  # EXTRA is several words
  polyrank train "runs/papers/$recipe.toml" "${sets[@]}" "${SETS[@]}" $EXTRA --resume
done

judge() { # NAME MODEL [OPTION ...]
  local name=$1
  shift
  polyrank evaluate "$@" ${LIMIT:+--limit "$LIMIT"} --json >"$OUT/$name.json"
  echo "$name $(cat "$OUT/$name.json")"
}
first=$OUT/mutual/retriever/model
second=$OUT/mutual/reranker/model
lists=("$data/test.jsonl" --metric R@1,R@2,R@5,R@10,R@50,MRR --breakdown tokens) # Table 1 and Figure 4
judge bi "$OUT/bi" "${lists[@]}"
judge cross "$OUT/cross" "${lists[@]}"
judge bi-mutual "$first" "${lists[@]}"
judge cross-mutual "$second" "${lists[@]}"
judge ensemble "$first" "${lists[@]}" --rerank "$second" --ensemble raw # sigmoid-reranked: as Eqs. 5 and 10 are printed
judge two-stage "$first" "${lists[@]}" --rerank "$second" --n-retrieved 10 # Table 2
judge two-stage-ensemble "$first" "${lists[@]}" --rerank "$second" --n-retrieved 10 --ensemble raw
pool=("$data/pool.jsonl" --pool "$data/candidates.jsonl" --metric R@1,R@2,R@5,R@10,R@50,MRR) # Table 3
judge pool-bm25 bm25 "${pool[@]}"
judge pool-bi "$OUT/bi" "${pool[@]}"
judge pool-bi-mutual "$first" "${pool[@]}"
judge pool-bm25-cross bm25 "${pool[@]}" --rerank "$second"
judge pool-two-stage "$first" "${pool[@]}" --rerank "$second"
judge pool-two-stage-ensemble "$first" "${pool[@]}" --rerank "$second" --ensemble raw
polyrank curves "$OUT"/{bi,cross,mutual/retriever,mutual/reranker}/metrics.jsonl -o "$OUT/training.svg" --overwrite
polyrank index build "$first" "$data/candidates.jsonl" -o "$OUT/index" --overwrite
python runs/stages.py "$data/pool.jsonl" --index "$OUT/index" --rerank "$second" --ensemble none "${lengths[@]/#/-n}" \
  ${LIMIT:+--limit "$LIMIT"} >"$OUT/stages.json"
