# Completes gputopo in bash; written by: gputopo completion bash
_gputopo() {
    local line=${COMP_LINE:0:COMP_POINT} word cut
    word=${line##*[[:space:]]}
    cut=${word%"${word##*[:=]}"}
    mapfile -t COMPREPLY < <(_GPUTOPO_COMPLETE="$line" gputopo 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
}
complete -o default -F _gputopo gputopo
