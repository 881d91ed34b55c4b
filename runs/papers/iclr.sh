#!/usr/bin/env bash
# Humeau et al., Poly-encoders (ICLR 2020): its tables, and those of the first version (arXiv). Trains and evaluates the models of each
# table, and prints it: published, polyrank's, difference.
#   DATA=folder TABLES="iclr-3 arxiv-4" ONLY='bert/(bi|poly-64)/dstc7' SEEDS=[1,2,3] EXTRA="--set train.max_steps=2" SMALL=1 bash runs/papers/iclr.sh
# ONLY: an extended regular expression that chooses among WEIGHTS/MODEL/TASK.
#   WEIGHTS: bert (BACKBONE=name or folder), and books and reddit, pre-trained with iclr-pretrain.toml and used as in section 5.3.
#     Your own pre-trained weights: BOOKS=folder, REDDIT=folder
#   MODEL: bi, poly-M, poly-first-M, poly-last-M, poly-last_h1-M, cross; with -batch-N, -top-N, -all or a reduction, Tables 2, 3, 7
#   TASK: convai2, dstc7, ubuntu-v2, wikipedia
# To use the papers' own files, put them into runs/work/papers/data; docs/papers.md lists them. A stopped run resumes when you start it
# again. Writes runs/work/papers/iclr (not in git): WEIGHTS/MODEL/TASK, and its figures in TASK.valid.json and TASK.test.json.
. "$(dirname "$0")/common.sh"
default=(iclr-{1..10} arxiv-{2..6})
TABLES=${TABLES:-${default[*]}}
if [[ $SMALL ]]; then # a part of each table's models
  ONLY=${ONLY:-bert/(bi|cross|bi-batch-32|cross-top-1|bi-mean_of_first-16|poly-last_h1-4)/convai2|bert/poly-16/dstc7|bert/bi/ubuntu|books/poly-first-16/ubuntu|reddit/bi/wiki}
  SEEDS=${SEEDS:-[1]}
fi
ONLY=${ONLY:-.}
declare -A trained=() # by this call
mkdir -p "$WORK/iclr"

pretrained() { # books or reddit: prints the folder with its weights
  local own=${1^^} model=$WORK/iclr/$1/pretrain/model data=$FILES/$1/train.jsonl steps=()
  [[ ${!own:-} ]] && echo "${!own}" && return
  [[ $SMALL ]] && steps=(--set train.steps=2 --set train.batch_tokens=2000 --set train.micro_batch_tokens=2000
    --set train.schedule.warmup_steps=1 --set vocabulary.size=500 --set model.layers=1 --set model.hidden=64 --set model.heads=2
    --set model.ffn=64)
  if [[ $1 == reddit ]]; then
    prepare reddit pairs json reddit
  else
    [[ -e $data ]] || python runs/papers/write_data.py "$DATA" "$FILES" books
  fi >&2
  if [[ $SMALL ]]; then
    head -n 500 "$data" >"$WORK/iclr/$1.jsonl"
    data=$WORK/iclr/$1.jsonl
  fi
  polyrank pretrain runs/papers/iclr-pretrain.toml --set "output=${model%/model}" --set "data.train=$data" \
    "${steps[@]}" --resume >&2
  echo "$model"
}

data_of() { # TASK: prints the folder of its examples
  [[ $1 == dstc7 ]] && echo "$FILES/dstc7-as-released" || echo "$FILES/$1"
}

learn() { # WEIGHTS MODEL TASK
  local weights=$1 model=$2 task=$3 start=$BACKBONE data
  case $task in
    dstc7) prepare dstc7 dstc7 json dstc7-as-released --as-released --every-turn ;; # v1, 5.1; released only for this task
    ubuntu-v2) prepare ubuntu-v2 ubuntu-v2 csv ubuntu-v2 ;;
    *) prepare "$task" "$task" txt "$task" ;;
  esac
  data=$(data_of "$task")
  [[ $weights == bert ]] || start=$(pretrained "$weights")
  local kind=${model%%-*} sets=(--set "model.backbone=$start" --set "output=$WORK/iclr/$weights/$model/$task"
    --set "data.train=$data/train.jsonl" --set "data.valid=$data/valid.jsonl")
  if [[ ${SEEDS:-} ]]; then
    sets+=(--set "train.seeds=$SEEDS")
  else # Table 3: five of Bi-encoders, three of Cross-encoders
    sets+=(--set "train.seeds=$([[ $kind == cross ]] && echo '[1,2,3]' || echo '[1,2,3,4,5]')")
  fi
  if [[ $task == convai2 && $kind == cross ]]; then
    sets+=(--set train.negatives.n=19 --set 'train.negatives.sources=["given"]')
  elif [[ $task == convai2 ]]; then
    sets+=(--set train.batch_size=512)
  elif [[ $task == wikipedia ]]; then # a sentence and an article; lengths are not stated
    sets+=(--set text.max_context_tokens=72 --set text.max_candidate_tokens=360)
  fi
  if [[ $weights != bert ]]; then # 5.3
    sets+=(--set train.optimizer=adamax --set train.weight_decay=0.0 --set train.decay_new=false
      --set train.train_layers=all --set "text.turn_separator=[NEWLINE]")
    [[ $kind == cross ]] || sets+=(--set model.match_output_std=0.5)
  fi
  case ${model#"$kind"} in
    -batch-*) sets+=(--set "train.batch_size=${model##*-}") ;; # Table 2
    -top-*) sets+=(--set "train.train_layers=${model#"$kind"-}") ;; # Table 3
    -all) sets+=(--set train.train_layers=all) ;;
    -mean_of_first-*) sets+=(--set model.reduction=mean_of_first --set "model.reduction_tokens=${model##*-}") ;; # Table 7
    -mean_but_first) sets+=(--set model.reduction=mean_but_first) ;;
    -first-* | -last-* | -last_h1-*) # Table 8; nothing is new
      local codes=${model#poly-}
      sets+=(--set "model.codes=${codes%-*}" --set "model.n_codes=${model##*-}" --set train.new_lr=none --set train.decay_new=false)
      ;;
    -*) sets+=(--set "model.n_codes=${model##*-}") ;;
  esac
  # shellcheck disable=SC2086  # EXTRA is several words
  polyrank train "runs/papers/iclr-$kind.toml" "${sets[@]}" "${SETS[@]}" $EXTRA --resume
}

for table in $TABLES; do
  files=$(python runs/papers/published.py "$table" --needs)
  for file in $files; do
    if [[ $file == iclr/speed-* ]]; then
      device=${file#iclr/speed-} sizes=(-n 1000 -n 100000) kinds=(Bi Poly-{16,64,360} Poly-first-{16,64,360} Cross)
      [[ $SMALL ]] && kinds=(Bi Poly-16 Poly-first-16 Cross)
      [[ -e $WORK/$file ]] || { [[ $file == *cuda* ]] && ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; } \
        || speed "$file" "${device%.json}" "${sizes[@]}" "${kinds[@]/#/--kind=}"
      continue
    fi
    IFS=/ read -r _ weights model rest <<<"$file" # iclr/WEIGHTS/MODEL/TASK.PART.json, or the training's own files in TASK
    task=${rest%%[./]*} run=$weights/$model/${rest%%[./]*}
    [[ $run =~ $ONLY ]] || continue
    [[ ${trained[$run]:-} ]] || learn "$weights" "$model" "$task"
    trained[$run]=1
    [[ $rest == */* || ${trained[$file]:-} ]] && continue
    trained[$file]=1 part=${rest%.json}
    lists=()
    [[ $task == wikipedia ]] && lists=(--candidates $([[ $SMALL ]] && echo 11 || echo 10001) --candidates-from "$FILES/wikipedia/further.txt"
      --seed 0)
    evaluate "$file" "$WORK/iclr/$run" "$(data_of "$task")/${part#*.}.jsonl" "${lists[@]}" --metric R@1,R@5,R@10,MRR,MAP
  done
  show "$table"
done
