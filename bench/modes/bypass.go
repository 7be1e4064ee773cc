package modes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/internal/bundle"
)

// Bypass4netns has a container of runc in a network namespace of its own, and bypass4netns, which swaps
// each socket that connects or binds for one of the host's.
const Bypass4netns Mode = "bypass4netns"

// bypassScript runs a container. Its bundle's folder has the rest.
// usage: sh -c SCRIPT sh FOLDER PORT; PORT is 0 where none is published
const bypassScript = `set -e
dir=$1; port=$2
[ "$port" != 0 ] && publish="-p $port:$port" || publish=
mkfifo "$dir/ready"
end() {
	runc --root "$dir/runc" delete --force "${dir##*/}" 2>/dev/null || :
	kill $bypass 2>/dev/null || :
	wait || :
	rm -r "$dir"
}
trap end EXIT
trap 'exit 1' TERM
XDG_RUNTIME_DIR="$dir" bypass4netns --socket "$dir/sock" --ignore 127.0.0.0/8 $publish --ready-fd 3 \
	3>"$dir/ready" >"$dir/log" 2>&1 &
bypass=$!
[ "$(head -c 1 "$dir/ready" | wc -c)" = 1 ] || { cat "$dir/log" >&2; exit 1; }
runc --root "$dir/runc" run --bundle "$dir" "${dir##*/}" &
container=$!
wait $container
`

// bypassed are the calls that bypass4netns wants to hear of (its pkg/oci).
var bypassed = []string{"bind", "close", "connect", "setsockopt", "fcntl", "_exit", "exit_group", "getpeername"}

// bypass is the command line of a program in the mode Bypass4netns.
func bypass(port uint16, argv []string) []string {
	dir, err := makeBypassed(argv)
	if err != nil { // for who runs it
		return []string{"sh", "-c", `echo "$1" >&2; exit 1`, "sh", err.Error()}
	}
	return []string{"sh", "-c", bypassScript, "sh", dir, strconv.Itoa(int(port))}
}

// makeBypassed makes a bundle, whose folder bypassScript removes.
func makeBypassed(argv []string) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "bench-bypass-"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := bundle.Root(filepath.Join(dir, "root")).Install(argv[0]); err != nil {
		return "", err
	}
	s, err := bundle.Spec("root", append([]string{"/bin/" + filepath.Base(argv[0])}, argv[1:]...)...)
	if err != nil {
		return "", err
	}
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	s.Linux.Resources = nil
	s.Linux.Seccomp = &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		ListenerPath:  filepath.Join(dir, "sock"),
		Syscalls:      []specs.LinuxSyscall{{Names: bypassed, Action: specs.ActNotify}},
	}
	if err := bundle.Write(dir, s); err != nil {
		return "", fmt.Errorf("make a bundle in %s: %w", dir, err)
	}
	return dir, nil
}
