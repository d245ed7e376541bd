#!/bin/bash
# A Llama-3-8B-shaped run in the way of Megatron-LM's example scripts: arrays, defaults, a condition on the precision.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
OUT=${1:-"out/llama3"}
TOKENIZER=${2:-"MOCK"}
PER_NODE=8
NODES=2
WORLD_SIZE=$(($PER_NODE*$NODES))
TP=2
CP=1
SEQ=8192
KIND="fp8"

mkdir -p "$(dirname "$OUT")"

LAUNCHER=(
    --nproc_per_node $PER_NODE
    --nnodes $NODES
    --node_rank $NODE_RANK
)
MODEL=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length $SEQ
    --max-position-embeddings $SEQ
    --position-embedding-type rope
    --rotary-base 500000   # changes no size
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --normalization RMSNorm
    --swiglu
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size 128
    --train-samples 1000000
    --lr 0.0002
    --bf16
    --grad-reduce-in-bf16
    --cross-entropy-loss-fusion
    --recompute-granularity selective
    --recompute-modules core_attn mlp
)
PRECISION=()
if [[ "$KIND" == "fp8" ]]; then
    PRECISION+=(
        "--fp8-format hybrid"
        "--fp8-param-gather"
    )
fi
PARALLEL=(
    --tensor-model-parallel-size $TP
    --context-parallel-size $CP
    # --pipeline-model-parallel-size 4
    --sequence-parallel
)
DDP=(
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
TRAINING+=("${DDP[@]}")
DATA=()
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DATA+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256")
else
    DATA+=("--tokenizer-model $TOKENIZER")
fi
torchrun ${LAUNCHER[@]} pretrain_gpt.py \
    ${MODEL[@]} \
    ${TRAINING[@]} \
    ${PRECISION[@]} ${PARALLEL[@]} \
    ${DATA[@]} --save "$OUT" --no-rope-fusion --window-attn-skip-freq $SKIP
