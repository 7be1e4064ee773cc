package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A case of testdata/translated is a case as of TestPrograms, of programs that know IPv4 only. It
// runs bare between a host and a remote that have IPv4, which is the control, and translated between
// those that have IPv6 only. All have to print the same, but for the words
//
//	@OWN@       the address that the program has
//	@PEER@      the address that it knows the remote by
//	@FROM@      the address that the remote knows it by
//	@SERVER@    the remote's own address, by which the container asks it
//	@BITS@      the length of these two
//	@TO@        the address to which IP_PKTINFO says that a datagram came
//	@RESOLVER@  a name server that programs can ask; resolv.conf names it, too
//
// The names server.example.org, the remote, and container.example.org, the host, are for all scripts.

// translatedModes are the modes of translated containers. In make test a case runs in one of them, in
// make soak in all.
var translatedModes = []string{"auto", "seccomp"}

// The addresses of a translated container: its own, and that of the first host that it speaks with.
const (
	ownAddr4     = "192.0.0.2"
	virtualAddr4 = "198.18.0.1"
	// nowhere is a name server that is not there.
	nowhere = "192.0.2.53"
)

// TestTranslatedPrograms runs every case. While it does, no packet of IPv4 is on a link of the host,
// none on its loopback names an address that is no loopback's, and none of IPv6 is in the
// container's namespace.
func TestTranslatedPrograms(t *testing.T) {
	paths, err := filepath.Glob("testdata/translated/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("find cases: %v", err)
	}
	tsugiki, bin := filepath.Join(testkit.BuildTsugiki(t), "tsugiki"), build(t)
	buildC(t, bin, "probe")
	buildC(t, bin, "accepts")
	for i, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			needs(t, archive)
			t.Run("bare", func(t *testing.T) {
				t.Parallel()
				host, remote := testkit.HostAddr4.String(), testkit.RemoteAddr4.String()
				r := newRig(t, archive, bin, testkit.Options{}, "@OWN@", host, "@PEER@", remote, "@FROM@", host, "@SERVER@", remote, "@BITS@", "32", "@TO@", host, "@RESOLVER@", remote)
				r.resolve(t, remote)
				compare(t, r.file("want"), r.run(t))
			})
			for k, mode := range translatedModes {
				if !testkit.Soaking() && i%len(translatedModes) != k {
					continue
				}
				t.Run(mode, func(t *testing.T) {
					t.Parallel()
					from := testkit.HostAddr6.String()
					r := newRig(t, archive, bin, testkit.Options{IPv6Only: true}, "@OWN@", ownAddr4, "@PEER@", virtualAddr4, "@FROM@", from, "@SERVER@", testkit.RemoteAddr6.String(), "@BITS@", "128", "@TO@", "127.0.0.1", "@RESOLVER@", nowhere)
					r.resolve(t, nowhere)
					r.graft = []string{
						tsugiki, "run", "--mode", mode, "--run-dir", t.TempDir(),
						"--translate", "--ipv6", from, "--dns", fmt.Sprintf("[%s]:53", testkit.RemoteAddr6),
					}
					r.singleStack(t)
					compare(t, r.file("want"), r.run(t))
				})
			}
		})
	}
}

// resolve starts a resolver on the remote. The scripts inside find it by an address of theirs.
func (r *rig) resolve(t *testing.T, addr string) {
	t.Helper()
	files := map[string]string{
		"etc/hosts":               "127.0.0.1 localhost\n",
		"etc/nsswitch.conf":       "hosts: files dns\n",
		"etc/resolv.conf.inside":  "nameserver " + addr + "\noptions timeout:30\n",
		"etc/resolv.conf.outside": "nameserver 127.0.0.1\noptions timeout:30\n",
	}
	server, container := testkit.RemoteAddr6, testkit.HostAddr6
	if addr == testkit.RemoteAddr4.String() {
		server, container = testkit.RemoteAddr4, testkit.HostAddr4
	}
	files["etc/names"] = fmt.Sprintf("%s server.example.org\n%s container.example.org\n", server, container)
	if err := os.Mkdir(filepath.Join(r.dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	resolver := r.command(t, r.top.Remote, []string{
		testkit.Program(t, "dnsmasq"), "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root",
		"--no-resolv", "--no-hosts", "--addn-hosts=" + filepath.Join(r.dir, "etc/names"), "--local=/#/", "--log-facility=-",
	})
	if err := resolver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = resolver.Process.Signal(unix.SIGTERM)
		_ = resolver.Wait()
	})
	if err := r.top.Remote.WaitListen(t.Context(), "udp", 53); err != nil {
		t.Fatal(err)
	}
	// The machine's own files stay as they are.
	const bind = `for f in hosts nsswitch.conf; do mount --bind "etc/$f" "/etc/$f"; done
mount --bind "etc/resolv.conf.$1" /etc/resolv.conf
shift
exec "$@"`
	for side, line := range map[string]*[]string{"inside": &r.inside, "outside": &r.outside} {
		*line = []string{"unshare", "--mount", "sh", "-euc", bind, "sh", side}
	}
}

// singleStack captures packets, from now until the case ends.
func (r *rig) singleStack(t *testing.T) {
	t.Helper()
	captures := []*testkit.Capture{
		testkit.StartCapture(t, r.top.Host.Path(), testkit.IPv4OnLinks),
		testkit.StartCapture(t, r.top.Host.Path(), testkit.StrayIPv4),
	}
	r.ready = func(pid string) {
		captures = append(captures, testkit.StartCapture(t, filepath.Join("/proc", pid, "ns/net"), testkit.IPv6))
	}
	r.end = func() {
		if len(captures) != 3 {
			t.Error("the container's namespace was not captured")
		}
		for _, c := range slices.Backward(captures) {
			c.Nothing(t)
		}
	}
}
