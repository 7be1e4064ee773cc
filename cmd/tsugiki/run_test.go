package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/script"
)

const (
	outEndpoint = "out type ipv4 addr 0.0.0.0 port dynamic"
	sixEndpoint = "six type ipv6 addr :: port dynamic"
)

// ended is what a command has printed, and how it ended, see script.Status.
type ended struct{ stdout, stderr, status string }

// tsugiki runs the command in a network namespace.
func tsugiki(t *testing.T, host *netns.NS, args ...string) ended {
	t.Helper()
	var stdout, stderr strings.Builder
	c := exec.Command("tsugiki", args...)
	c.Stdout, c.Stderr = &stdout, &stderr
	err := host.Do(c.Run)
	return ended{stdout.String(), stderr.String(), script.Status(err)}
}

// refusal is a command that must not start a program.
type refusal struct {
	name   string
	args   []string // of tsugiki run; the program follows, unless there is a "--"
	status int
	says   []string // regular expressions: the mistake, and what to write instead
}

// check runs the command. It must end with the exit status and one line on standard error,
// start no program and leave no file.
func (r refusal) check(t *testing.T, host *netns.NS) {
	t.Helper()
	marker := filepath.Join(t.TempDir(), "marker")
	runDir := t.TempDir()
	args := append([]string{"run", "--run-dir", runDir}, r.args...)
	if !slices.Contains(args, "--") {
		args = append(args, "--", "touch", marker)
	}
	r.judge(t, tsugiki(t, host, args...))
	if _, err := os.Stat(marker); err == nil {
		t.Error("the program has run")
	}
	if left, err := os.ReadDir(runDir); err != nil || len(left) > 0 {
		t.Errorf("left in the run directory: %v %v", left, err)
	}
}

// judge compares what a command has printed.
func (r refusal) judge(t *testing.T, got ended) {
	t.Helper()
	if got.status != fmt.Sprint(r.status) {
		t.Errorf("exit status %s, want %d", got.status, r.status)
	}
	if got.stdout != "" {
		t.Errorf("standard output: %q", got.stdout)
	}
	if strings.Count(got.stderr, "\n") != 1 || !strings.HasPrefix(got.stderr, "tsugiki: ") || !strings.HasSuffix(got.stderr, "\n") {
		t.Errorf("standard error is not one line that begins with tsugiki:\n%.400s", got.stderr)
	}
	for _, re := range r.says {
		if !regexp.MustCompile(re).MatchString(got.stderr) {
			t.Errorf("standard error does not say %q:\n%.400s", re, got.stderr)
		}
	}
}

// endpoints returns an --endpoint for each definition.
func endpoints(list ...string) []string {
	var args []string
	for _, e := range list {
		args = append(args, "--endpoint", e)
	}
	return args
}

// withEndpoints returns the endpoints that the cases share, and args.
func withEndpoints(args ...string) []string {
	return append(endpoints(outEndpoint, sixEndpoint, "web type ipv4 addr 0.0.0.0 port 8080",
		"few type ipv4 addr 0.0.0.0 port 8000-8009", "un type unix path /nonexistent/un.sock"), args...)
}

// A mistake in the command line is one line on standard error and status 2.
func TestRunUsage(t *testing.T) {
	host := testkit.NewLoopback(t)
	for _, r := range []refusal{
		{"unknown endpoint, egress", withEndpoints("-e", "0.0.0.0/0=nope"), 2, []string{"nope", "there is .*web"}},
		{"unknown endpoint, ingress", withEndpoints("-i", "0.0.0.0:80=nope"), 2, []string{"nope"}},
		{"no endpoint in a rule", withEndpoints("-e", "0.0.0.0/0"), 2, []string{"=ENDPOINT"}},
		{"endpoint without type", endpoints("x addr 0.0.0.0 port 1"), 2, []string{"type", "ipv4, ipv6 or unix"}},
		{"endpoint of an unknown type", endpoints("x type ipx addr 0 port 1"), 2, []string{"ipx", "ipv4, ipv6 or unix"}},
		{"endpoint without port", endpoints("x type ipv4 addr 0.0.0.0"), 2, []string{"port", "dynamic"}},
		{"endpoint with a bad port", endpoints("x type ipv4 addr 0.0.0.0 port 70000"), 2, []string{"70000", "65535"}},
		{"endpoint with ports backwards", endpoints("x type ipv4 addr 0.0.0.0 port 9-8"), 2, []string{"9-8"}},
		{"endpoint with an IPv6 address", endpoints("x type ipv4 addr ::1 port 1"), 2, []string{"::1"}},
		{"endpoint with a name for an address", endpoints("x type ipv4 addr localhost port 1"), 2, []string{"localhost"}},
		{"endpoint with an unknown word", endpoints("x type ipv4 address 0.0.0.0 port 1"), 2, []string{"address", "addr"}},
		{"endpoint with a word twice", endpoints("x type ipv4 addr 0.0.0.0 addr 0.0.0.0 port 1"), 2, []string{"twice"}},
		{"endpoint without a value", endpoints("x type"), 2, []string{"type", "value"}},
		{"endpoint with a long name", endpoints("abcdefghijklmnop type ipv4 addr 0.0.0.0 port 1"), 2, []string{"15"}},
		{"endpoint with a bad name", endpoints("a/b type ipv4 addr 0.0.0.0 port 1"), 2, []string{"a/b"}},
		{"endpoint of nothing", endpoints(""), 2, []string{"empty", "NAME type"}},
		{"unix endpoint without path", endpoints("x type unix"), 2, []string{"path"}},
		{"unix endpoint with a relative path", endpoints("x type unix path un.sock"), 2, []string{"un.sock"}},
		{"two endpoints of a name", endpoints(outEndpoint, outEndpoint), 2, []string{"out"}},

		{"everything without its length", []string{"-e", "0.0.0.0=0.0.0.0"}, 2, []string{"write 0.0.0.0/0 "}},
		{"everything of IPv6 without its length", []string{"-e", "[::]=::"}, 2, []string{"write ::/0 "}},
		{"a port of everything without its length", []string{"-e", "[::]:80=::"}, 2, []string{"write ::/0 "}},
		{"prefix too long", withEndpoints("-e", "0.0.0.0/33=out"), 2, []string{"0.0.0.0/33"}},
		{"prefix with bits beyond", withEndpoints("-e", "10.1.2.3/8=out"), 2, []string{"10.0.0.0/8"}},
		{"prefix of the other family", withEndpoints("-e", "::/0=out"), 2, []string{"ipv4", "ipv6"}},
		{"prefix of IPv4 in IPv6", withEndpoints("-e", "::ffff:0:0/96=six"), 2, []string{"IPv4"}},
		{"prefix with a bad port", withEndpoints("-e", "10.0.0.0/8:x=out"), 2, []string{"port"}},
		{"prefix without a closing bracket", withEndpoints("-e", "[::/0:80=six"), 2, []string{"]"}},
		{"prefix by a range of ports", withEndpoints("-e", "10.0.0.0/8=few"), 2, []string{"dynamic"}},
		{"ingress without port", withEndpoints("-i", "0.0.0.0=out"), 2, []string{"port"}},
		{"ingress of a name", withEndpoints("-i", "localhost:80=out"), 2, []string{"localhost"}},
		{"ingress of the other family", withEndpoints("-i", "[::]:80=out"), 2, []string{"ipv4", "ipv6"}},
		{"ingress of ports to one", withEndpoints("-i", "0.0.0.0:80-90=web"), 2, []string{"80-90|11 ports", "dynamic"}},
		{"ingress of ports not in the range", withEndpoints("-i", "0.0.0.0:8005-8015=few"), 2, []string{"8000-8009"}},
		{"ingress of ports that overlap", withEndpoints("-i", "0.0.0.0:80=out", "-i", "0.0.0.0:70-90=out"), 2, []string{"overlap", "70-90"}},
		{"ingress twice", withEndpoints("-i", "0.0.0.0:80=out", "-i", "0.0.0.0:80=web"), 2, []string{"80"}},
		{"ingress at an address of the other family", withEndpoints("-i", "0.0.0.0:80=[::1]:80"), 2, []string{"IPv6 address"}},
		{"ingress of ports to one of an address", withEndpoints("-i", "0.0.0.0:80-90=198.51.100.1:80"), 2, []string{"80-90", "same range"}},
		{"ingress at something else", withEndpoints("-i", "0.0.0.0:80=host:80"), 2, []string{"neither an endpoint nor a host address"}},
		{"egress from an address and port", withEndpoints("-e", "0.0.0.0/0=0.0.0.0:80"), 2, []string{"port", "endpoint"}},
		{"an endpoint with the name of an address's", append(endpoints("e-1 type unix path /x"), "-e", "0.0.0.0/0=0.0.0.0"), 2, []string{"e-1", "taken"}},
		{"several faults", withEndpoints("-e", "0.0.0.0/0", "-i", "0.0.0.0=out"), 2, []string{"-i .*; .*-e"}},
		{"egress twice", withEndpoints("-e", "10.0.0.0/8=out", "-e", "10.0.0.0/8=out"), 2, []string{"10.0.0.0/8"}},

		{"unknown flag", []string{"--bogus"}, 2, []string{"--bogus"}},
		{"unknown short flag", []string{"-z"}, 2, []string{"z"}},
		{"unknown mode", []string{"--mode", "magic"}, 2, []string{"magic", "seccomp"}},
		{"no command", []string{"--"}, 2, []string{"command", "COMMAND"}},
		{"unknown user", []string{"-u", "no-such-user"}, 2, []string{"no-such-user"}},
		{"unknown group", []string{"-u", "0:no-such-group"}, 2, []string{"no-such-group"}},
		{"negative user", []string{"-u", "-1"}, 2, []string{"-1"}},
		{"user of nothing", []string{"-u", ":"}, 2, []string{"user"}},
		{"bad name", []string{"--name", "a b"}, 2, []string{"a b", "letters"}},
		{"name with a slash", []string{"--name", "../x"}, 2, []string{`\.\./x`}},
		{"NET_ADMIN", []string{"--cap-add", "NET_ADMIN"}, 2, []string{"NET_ADMIN", "host's interfaces", "leave it out"}},
		{"net_admin in the engines' notation", []string{"--cap-add", "cap_net_admin"}, 2, []string{"NET_ADMIN"}},
		{"ALL", []string{"--cap-add", "ALL"}, 2, []string{"NET_ADMIN", "host's interfaces"}},
		{"unknown capability", []string{"--cap-add", "FLY"}, 2, []string{"FLY", "capabilities"}},
		{"unknown capability to drop", []string{"--cap-drop", "FLY"}, 2, []string{"FLY"}},
	} {
		t.Run(r.name, func(t *testing.T) { r.check(t, host) })
	}
	for name, args := range map[string][]string{
		"nothing": {}, "unknown command": {"graftle"}, "flag before the command": {"--bogus", "run"},
		"flag without its value": {"run", "--name"},
	} {
		t.Run(name, func(t *testing.T) {
			refusal{status: 2}.judge(t, tsugiki(t, host, args...))
		})
	}
}

// ALL may be added if NET_ADMIN is dropped.
func TestRunAllButNetAdmin(t *testing.T) {
	host := testkit.NewLoopback(t)
	got := tsugiki(t, host, "run", "--run-dir", t.TempDir(), "--cap-add", "ALL", "--cap-drop", "net_admin", "--", "true")
	if got.status != "0" {
		t.Errorf("exit status %s: %s", got.status, got.stderr)
	}
}

// A program without a rule runs, and one line of the log warns of that.
func TestRunWithoutRule(t *testing.T) {
	host := testkit.NewLoopback(t)
	const line = "nothing of the program is grafted"
	for name, tt := range map[string]struct {
		args []string
		said int
	}{
		"nothing":       {nil, 1},
		"a user":        {[]string{"-u", "65534"}, 1},
		"verbose":       {[]string{"-v"}, 1},
		"a rule":        {[]string{"-e", "0.0.0.0/0=0.0.0.0"}, 0},
		"another":       {[]string{"-i", "[::]:80=::"}, 0},
		"only a name":   {endpoints(outEndpoint), 0},
		"rule and name": {withEndpoints("-e", "0.0.0.0/0=out"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"run", "--run-dir", t.TempDir()}, append(tt.args, "--", "echo", "ran")...)
			got := tsugiki(t, host, args...)
			if got.status != "0" || got.stdout != "ran\n" || strings.Count(got.stderr, line) != tt.said {
				t.Errorf("%s, %q: %s", got.status, got.stdout, got.stderr)
			}
			if name != "verbose" && strings.Count(got.stderr, "\n") != tt.said {
				t.Errorf("more was said: %s", got.stderr)
			}
		})
	}
}

// For a program that cannot be executed, the status is that of env(1).
func TestRunProgramStatus(t *testing.T) {
	host := testkit.NewLoopback(t)
	dir := t.TempDir()
	if testing.CoverMode() != "" { // of a process that runs as another user, too
		t.Setenv("GOCOVERDIR", publicDir(t))
	}
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, r := range []refusal{
		{"not found", []string{"--", "no-such-program"}, 127, []string{"no-such-program", "no such file"}},
		{"no such path", []string{"--", "/no/such/program"}, 127, []string{"/no/such/program"}},
		{"empty", []string{"--", ""}, 127, nil},
		{"interpreter not found", []string{"--", script}, 127, []string{"script"}},
		{"not executable", []string{"--", "/etc/passwd"}, 126, []string{"/etc/passwd", "permission"}},
		{"a directory", []string{"--", dir}, 126, []string{"directory|permission"}},
		{"not for this user", []string{"-u", "65534", "--", filepath.Join(privateDir(t), "true")}, 126, []string{"permission"}},
	} {
		t.Run(r.name, func(t *testing.T) { r.check(t, host) })
	}
}

// publicDir returns a folder into which everybody can write.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "public-") // folders above t.TempDir are private
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// privateDir returns a folder that only root can enter, with a program true.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(testkit.Program(t, "true"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "true"), data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
