# Process 1 of a lab: the network between its hosts, in a namespace that no way leads out of. Everything of the lab ends
# with this process.
set -eu
ip link set lo up
ip link add name switch type bridge
ip link set switch up
echo up
exec </dev/null >/dev/null 2>&1
# Waiting is what reaps the processes that come here when their parent has ended.
while :; do
    sleep 86400 &
    wait $! || :
done
