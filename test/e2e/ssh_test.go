package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const sshPort = 2222

// sshFiles are the keys and configurations of one server and its client.
type sshFiles struct{ dir string }

func newSSH(t *testing.T) sshFiles {
	t.Helper()
	testkit.Program(t, "sshd")
	s := sshFiles{t.TempDir()}
	for _, name := range []string{"host", "client"} {
		gen := exec.Command(testkit.Program(t, "ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", s.path(name))
		if out, err := gen.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	host, err := os.ReadFile(s.path("host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	sshd := fmt.Sprintf(`ListenAddress 0.0.0.0
Port %d
HostKey %s
AuthorizedKeysFile %s
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PidFile none
PrintLastLog no
LogLevel VERBOSE
Subsystem sftp internal-sftp
`, sshPort, s.path("host"), s.path("client.pub"))
	ssh := fmt.Sprintf(`User root
Port %d
IdentityFile %s
IdentitiesOnly yes
UserKnownHostsFile %s
GlobalKnownHostsFile none
StrictHostKeyChecking yes
BatchMode yes
LogLevel ERROR
`, sshPort, s.path("client"), s.path("known"))
	known := fmt.Sprintf("[%s]:%d %s[%s]:%d %s", hostAddr4, sshPort, host, remoteAddr4, sshPort, host)
	for name, text := range map[string]string{"sshd_config": sshd, "ssh_config": ssh, "known": known} {
		if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s sshFiles) path(name string) string { return filepath.Join(s.dir, name) }

// server is the command that starts the server, in a mount namespace with the
// folder that it needs and that an installed one has.
func (s sshFiles) server(t *testing.T) []string {
	t.Helper()
	const script = `mount -t tmpfs -o mode=755 sshd /run && mkdir /run/sshd && exec "$@"`
	return []string{
		"unshare", "--mount", "sh", "-c", script, "sh",
		testkit.Program(t, "sshd"), "-D", "-e", "-f", s.path("sshd_config"),
	}
}

// TestSSH runs commands and copies files.
func TestSSH(t *testing.T) {
	t.Parallel()
	data := make([]byte, 2<<20)
	_, _ = rand.Read(data)
	eachMode(t, both, func(t *testing.T, w *world, v variant) {
		t.Run("server", func(t *testing.T) {
			s := newSSH(t)
			line := slices.Concat([]string{"--cap-add", "SYS_ADMIN"}, ingress(sshPort), []string{"--"}, s.server(t))
			sshd := serve(t, v.run(t, w, line...), port{w.h, "tcp", sshPort})
			s.check(t, data, hostAddr4, remoteAddr4, sshd, func(line ...string) *testkit.Cmd {
				return command(t, w.srv, line[0], line[1:]...)
			})
		})
		t.Run("client", func(t *testing.T) {
			s := newSSH(t)
			sshd := w.remoteServer(t, sshPort, s.server(t)...)
			s.check(t, data, remoteAddr4, sourceAddr4, sshd, func(line ...string) *testkit.Cmd {
				return v.program(t, w, nil, line...)
			})
		})
	})
}

// check uses a server as the client that run starts.
func (s sshFiles) check(t *testing.T, data []byte, server, client string, sshd *server, run func(line ...string) *testkit.Cmd) {
	t.Helper()
	config := []string{"-F", s.path("ssh_config")}
	ask := run(slices.Concat([]string{"ssh"}, config, []string{server, `echo $SSH_CONNECTION; cat; exit 3`})...)
	ask.Stdin = bytes.NewReader(data)
	r := try(t, ask)
	from, echoed, _ := strings.Cut(r.stdout, "\n")
	words := strings.Fields(from)
	if exitStatus(r.err) != 3 || len(words) != 4 || words[0] != client || words[2] != server {
		t.Errorf("ssh: %v, from %q, want from %s to %s and status 3: %s", r.err, from, client, server, r.stderr)
	}
	if echoed != string(data) {
		t.Errorf("ssh printed %d bytes that are not the %d of its standard input", len(echoed), len(data))
	}
	if err := os.WriteFile(s.path("file"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	scp := func(from, to string) {
		t.Helper()
		succeed(t, run(slices.Concat([]string{"scp", "-q"}, config, []string{from, to})...))
	}
	scp(s.path("file"), server+":"+s.path("there"))
	scp(server+":"+s.path("there"), s.path("back"))
	sftp := run(slices.Concat([]string{"sftp", "-q", "-b", "-"}, config, []string{server})...)
	sftp.Stdin = strings.NewReader(fmt.Sprintf("put %s %s\nget %s %s\n", s.path("back"), s.path("there2"), s.path("there2"), s.path("last")))
	succeed(t, sftp)
	if last, err := os.ReadFile(s.path("last")); err != nil || !bytes.Equal(last, data) {
		t.Errorf("copied %d bytes that are not the %d of the file (%v)", len(last), len(data), err)
	}
	if want := "Accepted publickey for root from " + client + " port "; strings.Count(sshd.printed(t), want) != 4 {
		t.Errorf("the server has not printed %q four times:\n%s", want, sshd.output)
	}
}
