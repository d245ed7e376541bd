import pytest

from parlay.errors import UsageError
from parlay.frameworks.shell import launch_arguments

SCRIPT = r"""#!/bin/bash
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
NODES=${SLURM_NNODES:-"4"}   # a default
PER_NODE=8
WORLD=$(($PER_NODE*$NODES))
KIND="fp8"
SAVE=$1
LAUNCH=(
    --nproc_per_node $PER_NODE
    --nnodes $NODES
    # --node_rank 7
)
MODEL=(
    --num-layers 32   # of them
    --hidden-size 4096
)
EXTRA=()
if [[ "$KIND" == "fp8" ]]; then
    EXTRA+=("--fp8-format hybrid")
else
    EXTRA+=(--wrong)
fi
if [ -n "${NOT_KNOWN}" ]; then
    EXTRA+=(--unknown)
fi
mkdir -p "$SAVE"
torchrun ${LAUNCH[@]} pretrain.py \
    ${MODEL[@]} \
    ${EXTRA[@]} --save $SAVE --world $WORLD
"""


def test_a_script_is_followed_without_running_it():
    words, unfollowed = launch_arguments(SCRIPT, "run.sh")
    assert words == [
        *["torchrun", "--nproc_per_node", "8", "--nnodes", "4", "pretrain.py", "--num-layers", "32", "--hidden-size", "4096"],
        *["--fp8-format", "hybrid", "--save", "$1", "--world", "32"],
    ]
    assert unfollowed == ['line 23: if [ -n "${NOT_KNOWN}" ]']


def test_a_variable_of_flags_and_a_command_in_quotes():
    text = 'options=" \\\n  --tp 2 \\\n  --pp 4 "\nrun="python -u pretrain.py ${options} --x 1"\nsrun -l bash -c "${run}"\n'
    assert launch_arguments(text, "f")[0][-6:] == ["--tp", "2", "--pp", "4", "--x", "1"]


@pytest.mark.parametrize("text", ["--tp 2 --pp 4", "--tp 2\n--pp 4\n", "--tp 2 \\\n--pp 4", "# list\n--tp 2\n\n--pp 4 # end"])
def test_a_plain_list(text):
    assert launch_arguments(text, "f")[0] == ["--tp", "2", "--pp", "4"]


def test_conditions_on_numbers_and_else():
    text = 'N=4\nif [ $N -gt 1 ]; then A="--many 1"; else A="--few 1"; fi\nif [ $N -eq 1 ]; then\nB="--one 1"\nelif [ "$N" != 4 ]\nthen\nB="--no 1"\nelse\nB="--yes 1"\nfi\nrun $A $B\n'
    assert launch_arguments(text, "f")[0] == ["run", "--many", "1", "--yes", "1"]


def test_variables_that_grow_are_refused():
    text = "A='--x xxxxxxxxxxxxxxxxxxxx'\n" + "".join('A="$A $A"\n' for _ in range(40))
    with pytest.raises(UsageError, match="grow"):
        launch_arguments(text, "f")


def test_nothing_is_found_in_prose_and_in_open_quotes():
    assert launch_arguments("Some words about training.", "f")[0] == []
    assert launch_arguments("run 'unclosed --tp 2", "f")[0][-2:] == ["--tp", "2"]


def test_semicolons_and_a_case_that_is_not_followed():
    text = "A=1; B='x; y'; C=(--c 3)\ncase $1 in\n8b)\n  C=(--wrong 1)\n  ;;\nesac\nrun ${C[@]} --a $A --b \"$B\""
    words, unfollowed = launch_arguments(text, "f")
    assert words == ["run", "--c", "3", "--a", "1", "--b", "x; y"]
    assert unfollowed == ["line 2: case $1 in"]
