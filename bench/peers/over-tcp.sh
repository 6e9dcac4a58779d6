#!/bin/sh
# over-tcp.sh MPICH OPENMPI BUILT XTASK-PEERS-OPTIONS: the messages of `xtask peers`, contiguous and of the layouts V, T
# and X, between two hosts by TCP. The hosts are two network namespaces, with a rank of every library in each. Needs
# root and `ip`. MPICH and OPENMPI are folders that the libraries are installed in, BUILT has `gapless` and
# `gapless-peers`; run it in the root of the repository:
#
#   sh bench/peers/over-tcp.sh mpi mpi target/release --only "message C 8388608" --out over-tcp.json
set -e
mpich=$(cd "$1" && pwd) openmpi=$(cd "$2" && pwd) built=$(cd "$3" && pwd)
shift 3
id=$$ folder=$(mktemp -d)
a=glp${id}a b=glp${id}b
trap 'ip netns del $a; ip netns del $b; rm -rf "$folder"' EXIT
for name in $a $b; do
    ip netns add $name
    ip -n $name link set lo up
done
ip link add $a type veth peer name $b
for end in $a:1 $b:2; do
    name=${end%:*}
    ip link set $name netns $name
    ip -n $name addr add 10.77.0.${end#*:}/24 dev $name
    ip -n $name link set $name up
done
mkdir -p "$folder/mpich/bin" "$folder/openmpi/bin" "$folder/built"
# Not links: the libraries' compilers find their files by where they lie.
for library in "$mpich" "$openmpi"; do
    name=mpich
    [ "$library" = "$mpich" ] || name=openmpi
    printf '#!/bin/sh\nexec "%s/bin/mpicc" "$@"\n' "$library" > "$folder/$name/bin/mpicc"
    chmod +x "$folder/$name/bin/mpicc"
done
ln -s "$built/gapless-peers" "$folder/built/gapless-peers"
# Each is given "-n 2 PROGRAM …", Open MPI's "--bind-to none" before that, ours "run".
cat > "$folder/built/gapless" <<END
#!/bin/sh
shift 3
exec "$built/gapless" run -n 2 -- sh -c \\
    'if [ \$PMI_RANK = 0 ]; then exec ip netns exec $a "\$@"; else exec ip netns exec $b "\$@"; fi' sh "\$@"
END
cat > "$folder/mpich/bin/mpiexec" <<END
#!/bin/sh
[ "\$1" != --version ] || exec "$mpich/bin/mpiexec" --version
shift 2
export MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self
exec "$mpich/bin/mpiexec" -n 1 ip netns exec $a "\$@" : -n 1 ip netns exec $b "\$@"
END
# Open MPI's launcher runs on one host, and starts a daemon on the other by this.
cat > "$folder/agent" <<END
#!/bin/sh
shift
exec ip netns exec $b unshare --uts sh -c 'hostname $b; exec sh -c "\$*"' sh "\$@"
END
cat > "$folder/openmpi/bin/mpiexec" <<END
#!/bin/sh
[ "\$1" != --version ] || exec "$openmpi/bin/mpirun" --version
shift 4
exec ip netns exec $a unshare --uts sh -c 'hostname $a; exec "\$@"' sh "$openmpi/bin/mpirun" --bind-to none \\
    --prtemca plm_ssh_agent "$folder/agent" -H 10.77.0.1:1,10.77.0.2:1 -n 2 --mca pml ob1 --mca btl tcp,self "\$@"
END
chmod +x "$folder/built/gapless" "$folder/mpich/bin/mpiexec" "$folder/openmpi/bin/mpiexec" "$folder/agent"
${XTASK:-cargo xtask} peers --mpich "$folder/mpich" --openmpi "$folder/openmpi" --built "$folder/built" \
    --called "sh bench/peers/over-tcp.sh MPICH OPENMPI BUILT" "$@"
