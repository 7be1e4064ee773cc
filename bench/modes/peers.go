package modes

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Other programs that connect a network namespace by sockets of the host: their processes carry
// each byte. The namespace has their tap device.
const (
	Pasta       Mode = "pasta"
	Slirp4netns Mode = "slirp4netns"
)

// Peers are the modes of other programs, and those of Docker. They are not among Modes.
var Peers = []Mode{DockerBridge, DockerHost, DockerGraft, Pasta, Slirp4netns, Bypass4netns}

// slirpScript runs a program in a network namespace that slirp4netns connects. The program starts
// when the device is there, and the port is published.
// usage: sh -c SCRIPT sh PORT PROGRAM...; PORT is 0 where none is published
const slirpScript = `set -e
port=$1; shift
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
mkfifo "$dir/up" "$dir/go" "$dir/ready"
unshare --net sh -c 'echo >"$0/up"; read -r _ <"$0/go"; exec "$@"' "$dir" "$@" &
program=$!
read -r _ <"$dir/up"
slirp4netns --configure --mtu=65520 --disable-host-loopback --api-socket "$dir/api" --ready-fd=3 $program tap0 \
	3>"$dir/ready" >"$dir/log" 2>&1 &
slirp=$!
trap 'kill $program $slirp 2>/dev/null || :; wait; rm -r "$dir"' EXIT
trap 'exit 1' TERM
[ "$(head -c 1 "$dir/ready")" = 1 ] || { cat "$dir/log" >&2; exit 1; }
if [ "$port" != 0 ]; then
	echo '{"execute": "add_hostfwd", "arguments": {"proto": "tcp", "host_port": '$port', "guest_port": '$port'}}' |
		socat -t 10 - UNIX-CONNECT:"$dir/api" | grep -q '"return"'
fi
echo >"$dir/go"
wait $program
`

// pastaScript runs a program in a network namespace that pasta connects. As another user than root,
// pasta cannot open files of the namespace that it makes. The program is the first process of a
// namespace of processes: it ends by SIGKILL only, and pasta with it.
// usage: as slirpScript
const pastaScript = `port=$1; shift
[ "$port" != 0 ] || port=none
pasta --runas 0 --no-map-gw --config-net --foreground --quiet -4 -t "$port" -u none -T none -U none -- "$@" &
pasta=$!
trap 'kill -KILL $(cat /proc/$pasta/task/$pasta/children)' TERM
while kill -0 $pasta 2>/dev/null; do
	wait $pasta
	status=$?
done
exit $status
`

// peer is the command line of a program in a mode of Peers, with a TCP port of the host that is
// published; 0 for none.
func peer(m Mode, port uint16, argv []string) []string {
	script := pastaScript
	switch m {
	case Slirp4netns:
		script = slirpScript
	case Bypass4netns:
		return bypass(port, argv)
	}
	return append([]string{"sh", "-c", script, "sh", strconv.Itoa(int(port))}, argv...)
}

// prepare makes the host ready for the modes that are not Modes.
func (r *Runner) prepare(ctx context.Context) error {
	if slices.ContainsFunc(r.modes, Mode.IsDocker) {
		if err := r.startDocker(ctx); err != nil {
			return err
		}
	}
	if slices.Contains(r.modes, Bypass4netns) {
		if err := testkit.Programs("bypass4netns", "runc"); err != nil {
			return err
		}
	}
	if !slices.Contains(r.modes, Pasta) && !slices.Contains(r.modes, Slirp4netns) {
		return nil
	}
	if err := testkit.Programs("pasta", "slirp4netns", "socat"); err != nil {
		return err
	}
	// Pasta copies addresses and routes of the device that leads to the default gateway.
	return r.onHost(ctx, "ip", "route", "add", "default", "via", testkit.RemoteAddr4.String())
}

func (m Mode) isPeer() bool { return slices.Contains(Peers, m) }

func (r *Runner) onHost(ctx context.Context, argv ...string) error {
	return runIn(ctx, r.Top.Host, argv...)
}

// runIn runs a program to its end in a namespace.
func runIn(ctx context.Context, ns *testkit.Namespace, argv ...string) error {
	if out, err := ns.Command(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return nil
}
