package docs

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// agentConfig allows what the pages ask for. Discovery would find the machine's own containers.
const agentConfig = `[charge]
discovery = false
[[allow]]
engines = ["docker"]
names = ["*"]
annotations = ["egress", "ingress"]
destinations = ["0.0.0.0/0"]
addresses = ["198.51.100.1"]
`

// await repeats a command that waits for one in the background, ten times a second.
const await = `await() {
	local n=0
	until eval "$1" 2>err; do
		n=$((n + 1))
		if [ $n = "$TRIES" ]; then
			cat err agent.log >&2
			exit 1
		fi
		sleep 0.1
	done
}
`

// prologue makes the place in which the commands of a page run: /run of their own, and an agent
// with its state there. The place ends with the shell.
const prologue = `set -eu
mount -t tmpfs none /run
trap 'kill $(jobs -p); wait' EXIT
tsugiki agent --config agent.toml --state-dir /run/state >agent.log 2>&1 &
` + await + `try() { await "$1"; }
try 'tsugiki ps'
`

// tries limits each await.
func tries() string { return fmt.Sprintf("TRIES=%d", 10*int(testkit.Patience.Seconds())) }

// script is what runs the commands of a block, each of which must succeed.
func (b block) script() string {
	var s strings.Builder
	for _, l := range strings.Split(strings.ReplaceAll(b.text, "\\\n", ""), "\n") {
		command, _, _ := strings.Cut(l, " #")
		command = strings.TrimSpace(command)
		switch {
		case command == "" || strings.HasPrefix(command, "#"):
		case strings.HasSuffix(command, "&"):
			fmt.Fprintf(&s, "%s\n", command)
		default:
			fmt.Fprintf(&s, "try '%s'\n", strings.ReplaceAll(command, "'", `'\''`))
		}
	}
	return s.String()
}

// Each command of the pages runs as it is printed, on a machine that has a loopback only.
func TestCommands(t *testing.T) {
	bin, err := testkit.Binaries()
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	each(t, func(b block) {
		if !b.isCommand() || b.not != "" || b.engine != "" {
			return
		}
		ran++
		t.Run(strings.ReplaceAll(b.String(), "/", "-"), func(t *testing.T) {
			host := testkit.NewLoopback(t)
			dir := place(t, bin)
			c := exec.CommandContext(t.Context(), "unshare", "-m", "--propagation", "private", "bash", "-c", prologue+b.script())
			c.Dir, c.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), tries())
			var out strings.Builder
			c.Stdout, c.Stderr = &out, &out
			if err := host.Do(c.Run); err != nil {
				t.Errorf("%v\n%s", err, &out)
			}
		})
	})
	if ran < 3 {
		t.Errorf("%d blocks have run", ran)
	}
}

// place is a folder in which the commands of a page run: bin is where make build puts it.
func place(t *testing.T, bin string) string {
	t.Helper()
	dir := t.TempDir()
	err := os.Symlink(bin, filepath.Join(dir, "bin"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "agent.toml"), []byte(agentConfig), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Commands of an engine run with this engine, which tsugiki setup has told of the runtime, and
// which has forgotten it after --undo. Its image stands for nginx, and what starts the agent as a
// service is done before.
func TestCommandsOfEngines(t *testing.T) {
	bin, err := testkit.Binaries()
	if err != nil {
		t.Fatal(err)
	}
	var list []block
	each(t, func(b block) {
		if b.engine != "" && b.not == "" {
			list = append(list, b)
		}
	})
	image, err := engines.BuildImage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range list {
		t.Run(strings.ReplaceAll(b.String(), "/", "-"), func(t *testing.T) { b.runWithEngine(t, bin, image) })
	}
}

func (b block) runWithEngine(t *testing.T, bin string, image *engines.Image) {
	dir := place(t, bin)
	host := testkit.Build(t, testkit.Options{NoRemote: true}).Host
	add(t, host, netip.MustParseAddr("198.51.100.1"))
	rig := engines.NewRig(t, host, engines.Options{
		Image: image,
		Env:   []string{"TSUGIKI_AGENT=" + filepath.Join(dir, "run/agent.sock"), tries()},
	})
	rig.Start(t, b.engine)
	// The shell has no service manager: the agent is started here.
	shell := fmt.Sprintf(`set -eu
cd %[1]s
export PATH=%[2]s:$PATH
tsugiki agent --config agent.toml --run-dir %[1]s/run --state-dir %[1]s/state >agent.log 2>&1 &
trap 'kill $!; wait' EXIT
systemctl() { [ "$*" = "start tsugiki" ]; }
real=%[2]s/tsugiki
tsugiki() { "$real" "$@" --agent %[1]s/run/agent.sock; }
try() { eval "$1" || { cat agent.log >&2; exit 1; }; }
%[5]sawait 'tsugiki ps >/dev/null'
%[3]s tag %[4]s nginx
runtimes() { %[3]s info -f '{{json .Runtimes}}'; }
reload() { kill -HUP $(cat /var/run/docker.pid); }
cp /etc/docker/daemon.json before
"$real" setup --yes %[3]s
reload
await 'runtimes | grep -q %[2]s/tsugiki-runtime'
`, dir, bin, b.engine, engines.ImageName, await) + b.script() + "tsugiki ps -o json\n" + b.engine + " ps -aq | xargs -r " + b.engine + ` rm -f >/dev/null
"$real" setup --undo --yes ` + b.engine + `
cmp /etc/docker/daemon.json before
reload
await '! runtimes | grep -q tsugiki-runtime'
`
	c := rig.Command(t.Context(), "bash", "-c", shell)
	var out, errors strings.Builder
	c.Stdout, c.Stderr = &out, &errors
	if err := c.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errors)
	}
	if !strings.Contains(out.String(), `"198.51.100.1:8080->0.0.0.0:80"`) {
		t.Errorf("the container is not grafted:\n%s%s", &out, &errors)
	}
}

// add gives the host an address.
func add(t *testing.T, host *testkit.Namespace, addr netip.Addr) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if out, err := host.Command(ctx, "ip", "address", "replace", addr.String()+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}
