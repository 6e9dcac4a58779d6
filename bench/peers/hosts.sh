#!/bin/sh
# hosts.sh mpich|openmpi FOLDER PROGRAM HOST HOST SECONDS: `PROGRAM SECONDS` (hosts.c) as two ranks of an MPI library that
# is installed in FOLDER, one in each of two network namespaces, over TCP. `figures hosts --mpi` adds the last three.
set -e
library=$1 bin=$(cd "$2/bin" && pwd) program=$(realpath "$3") a=$4 b=$5 seconds=$6
case $library in
mpich)
    # Both ranks are on one machine: they must not find that out.
    export MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self
    exec "$bin/mpiexec" -n 1 ip netns exec "$a" "$program" "$seconds" : -n 1 ip netns exec "$b" "$program" "$seconds"
    ;;
openmpi)
    # Its launcher runs on one host, and starts a daemon on the other by this.
    agent=$(mktemp)
    trap 'rm -f "$agent"' EXIT
    cat > "$agent" <<END
#!/bin/sh
shift
exec ip netns exec $b unshare --uts sh -c 'hostname $b; exec sh -c "\$*"' sh "\$@"
END
    chmod +x "$agent"
    address() { ip -n "$1" -4 -o addr show dev "$1" | sed 's/.*inet \([0-9.]*\).*/\1/'; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    # The ranks share processors: each host would be given the first.
    ip netns exec "$a" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "$a" "$bin/mpirun" --bind-to none \
        --prtemca plm_ssh_agent "$agent" -H "$(address "$a"):1,$(address "$b"):1" -n 2 --mca pml ob1 \
        --mca btl tcp,self "$program" "$seconds"
    ;;
*)
    echo "hosts.sh: $library is neither mpich nor openmpi" >&2
    exit 2
    ;;
esac
