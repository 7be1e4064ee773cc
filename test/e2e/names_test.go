package e2e

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const repositoryPort = 8000

// aptScript has apt-get read the list of a repository and fetch its package, in a folder that has
// all of its files.
const aptScript = `cd "$1"
mkdir -p etc/apt/apt.conf.d etc/apt/preferences.d var/cache/apt/archives/partial var/lib/apt/lists/partial
echo "deb [trusted=yes] $2 ./" >etc/apt/sources.list
: >status
for what in update "download branch"; do
	apt-get -qq -o Acquire::ForceIPv4=true -o Acquire::http::Proxy=false -o APT::Sandbox::User=root \
		-o Dir="$1/" -o Dir::State::status="$1/status" $what >&2
done
dpkg-deb -f branch_1.0_all.deb Version
`

// nodeLookup asks for IPv4 alone, as far as the container has it: as net.connect does.
const nodeLookup = `const dns = require("dns");
dns.lookup(process.argv[1], { family: 4, hints: dns.ADDRCONFIG }, (err, address) => {
  if (err) throw err;
  console.log(address);
})`

// loopbackOnly is a container whose namespace has nothing but a loopback.
var loopbackOnly = []variant{{name: "new", egress: []string{"-e", "0.0.0.0/0=out"}}}

// Programs that ask for names of one family, if the container has an address of that family, find
// hosts in a container that has nothing but a loopback. Each is in each mode in which glibc's
// resolver asks the host's network.
func TestNamesInLoopbackOnly(t *testing.T) {
	t.Parallel()
	repository := fmt.Sprintf("http://%s:%d", serverName, repositoryPort)
	programs := []struct {
		name string
		line func(t *testing.T) []string
		want string
	}{
		{"apt-get", func(t *testing.T) []string {
			testkit.Program(t, "apt-get")
			return []string{"sh", "-e", "-c", aptScript, "apt", t.TempDir(), repository}
		}, "1.0\n"},
		{"node", func(*testing.T) []string { return []string{"node", "-e", nodeLookup, serverName} }, remoteAddr4 + "\n"},
	}
	var all []variant
	for _, m := range modes {
		if m.name != "preload" {
			v := loopbackOnly[0]
			v.name, v.mode = m.name, m
			all = append(all, v)
		}
	}
	each(t, all, func(t *testing.T, w *world, v variant) {
		server := dnsmasq(t, 53)
		s := serve(t, command(t, w.srv, server[0], server[1:]...), port{w.srv, "udp", 53})
		serve(t, command(t, w.srv, python(t), "-m", "http.server", "--directory", makeRepository(t, w), fmt.Sprint(repositoryPort)),
			port{w.srv, "tcp", repositoryPort})
		for _, p := range programs {
			t.Run(p.name, func(t *testing.T) {
				line := p.line(t)
				testkit.Program(t, line[0])
				args := resolving(t, remoteAddr4, v.program(t, w, nil, line...).Args...)
				if out := succeed(t, command(t, w.h, args[0], args[1:]...)); out != p.want {
					t.Errorf("printed %q, want %q", out, p.want)
				}
			})
		}
		t.Run("in.tftpd", func(t *testing.T) { checkTFTP(t, w, v) })
		checkAllFrom(t, queriesOf(t, s), sourceAddr4)
	})
}

// makeRepository makes a repository with one package, and returns its folder.
func makeRepository(t *testing.T, w *world) string {
	t.Helper()
	const control = "Package: branch\nVersion: 1.0\nArchitecture: all\nMaintainer: The Tsugiki authors <maintainers@tsugiki.invalid>\nDescription: a branch\n"
	dir, tree := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(tree, "DEBIAN/control"), control)
	deb := filepath.Join(dir, "branch_1.0_all.deb")
	succeed(t, command(t, w.h, "dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, deb))
	content, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "Packages"), fmt.Sprintf("%sFilename: ./%s\nSize: %d\nSHA256: %x\n", control, filepath.Base(deb), len(content), sha256.Sum256(content)))
	return dir
}

// checkTFTP has in.tftpd serve at an address that it finds by a name.
func checkTFTP(t *testing.T, w *world, v variant) {
	const number = 69
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "hello\n")
	line := []string{testkit.Program(t, "in.tftpd"), "-4", "--foreground", "--secure", "--user", "root", "--address", anyName + ":" + fmt.Sprint(number), dir}
	flags := append([]string{"-i", fmt.Sprintf("0.0.0.0:%d=%s:%[1]d", number, hostAddr4), "--"}, line...)
	args := resolving(t, remoteAddr4, v.run(t, w, flags...).Args...)
	serve(t, command(t, w.h, args[0], args[1:]...), port{w.h, "udp", number})
	if out := succeed(t, command(t, w.srv, "curl", "-sS", "tftp://"+hostAddr4+"/file")); out != "hello\n" {
		t.Errorf("got %q", out)
	}
}
