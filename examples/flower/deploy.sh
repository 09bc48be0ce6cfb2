#!/usr/bin/env bash
# Runs the example on this machine as a real deployment: a SuperLink and two SuperNodes on loopback, each its own process.
#
#   ./deploy.sh                      with TLS, and SuperNodes that authenticate with keys the SuperLink was told of
#   ./deploy.sh --insecure           without
#   ./deploy.sh "rounds=5 up='topk(0.01) | fp16'"     anything else is run config, as for `flwr run --run-config`
#
# Certificates, keys, logs and state live in a folder that is removed at the end; KEEP=folder keeps them there.
set -euo pipefail
cd "$(dirname "$0")"

secure=true
if [[ "${1:-}" == --insecure ]]; then secure=false; shift; fi
run_config="${*:-}"
nodes=2
work="${KEEP:-$(mktemp -d)}"
mkdir -p "$work"
export FLWR_HOME="$work/flwr" PERBIT_STATE="${PERBIT_STATE:-$work/state}"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
mkdir -p "$FLWR_HOME"

pids=()
clean_up() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    [[ -n "${KEEP:-}" ]] || rm -rf "$work"
}
trap clean_up EXIT

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

wait_for() {  # until something listens on the port
    for _ in $(seq 600); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return; fi
        sleep 0.2
    done
    echo "nothing listens on port $1; see $work" >&2
    exit 1
}

make_certificates() {  # a CA of our own, a certificate for 127.0.0.1, a key for each node
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=perbit example CA" \
        -keyout "$work/ca.key" -out "$work/ca.crt" 2>/dev/null
    openssl req -newkey rsa:2048 -nodes -subj "/CN=localhost" -keyout "$work/server.key" -out "$work/server.csr" 2>/dev/null
    openssl x509 -req -days 30 -in "$work/server.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -CAcreateserial \
        -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1") -out "$work/server.pem" 2>/dev/null
    for ((node = 0; node < nodes; node++)); do
        ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$work/node$node"
    done
}

port=$(free_port)
if $secure; then
    make_certificates
    tls=(--ssl-ca-certfile "$work/ca.crt" --ssl-certfile "$work/server.pem" --ssl-keyfile "$work/server.key")
    link=("${tls[@]}" --enable-supernode-auth)
    node_options=("${tls[@]}" --root-certificates "$work/ca.crt")
    trust="root-certificates = \"$work/ca.crt\""
else
    link=(--insecure)
    node_options=(--insecure)
    trust="insecure = true"
fi
printf '[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\naddress = "127.0.0.1:%s"\n%s\n' "$port" "$trust" >"$FLWR_HOME/config.toml"

flower-superlink "${link[@]}" --host 127.0.0.1 --port "$port" --disable-runtime-dependency-installation \
    >"$work/superlink.log" 2>&1 &
pids+=($!)
wait_for "$port"

for ((node = 0; node < nodes; node++)); do
    key=()
    if $secure; then
        flwr supernode register "$work/node$node.pub" loopback
        key=(--auth-supernode-private-key "$work/node$node")
    fi
    flower-supernode "${node_options[@]}" "${key[@]}" --superlink "127.0.0.1:$port" --port "$(free_port)" \
        --node-config "partition-id=$node num-partitions=$nodes" >"$work/supernode$node.log" 2>&1 &
    pids+=($!)
done

flwr run . loopback --stream --run-config "min-nodes=$nodes $run_config"
